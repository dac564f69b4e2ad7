"""What a server refuses to one kind of lock, or to everybody for the moment, and what becomes of the others meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.engine.rig import FINE, NOSCRIPT, Command, Rig, error, failure, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockServerError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import READ
from wheel_lock.lock_types.base import LockType


def hold(rig: Rig, name: str, kind: LockType, timeout: float) -> Lease:
    """Acquire a lock of a kind whose script answers with a fence, or 0."""
    attempt = rig.acquire(name, timeout, kind=kind)
    rig.reply(None, integer(0))
    assert attempt.future.result()
    return attempt.lease


BUSY = "BUSY Redis is busy running a script."


def replying(rig: Rig, asked: list[float], reply: Callable[[Command], bytes]) -> Callable[[], None]:
    """Return what gives these replies; ``asked`` notes when."""

    def answer() -> None:
        for command in rig.server.take():
            asked.append(rig.now)
            rig.server.say(reply(command))

    return answer


def test_a_probe_whose_caller_has_gone_does_not_end_the_probing() -> None:
    with Rig(declare_keys=True) as rig:
        first, second = rig.hold("first", 30.0), rig.hold("second", 30.0)
        rig.go_on(12.0, replying(rig, [], lambda command: error(BUSY)))
        rig.go_on(0.65)
        [probe] = rig.server.take()
        probed, other = (first, second) if probe.names == ["first"] else (second, first)
        rig.release(probed)
        rig.reply("release", NOSCRIPT, integer(1))
        rig.go_on(1.3, rig.agree)
        assert other.renewals == 1


# -- abandoned leases, in front of those that wait ---------------------------------------------------------------------


def refusing(rig: Rig, scripts: Collection[str], seen: list[Command] | None = None) -> Callable[[], None]:
    """Return what answers as a server that refuses whole calls of these scripts; renewals go into ``seen``."""

    def reply(command: Command) -> bytes:
        if seen is not None and command.what.startswith("renew"):
            seen.append(command)
        return (
            error("NOPERM User app has no permissions to run the 'time' command") if command.what in scripts else FINE
        )

    return replying(rig, [], reply)


def test_a_kind_that_is_not_refused_goes_on_as_if_nothing_were(rig: Rig) -> None:
    rig.hold_many(names(1000), 30.0, renew_every=5.0)
    others = [hold(rig, f"other:{number}", READ, 30.0) for number in range(20)]
    seen: list[Command] = []
    rig.go_on(9.0, refusing(rig, ["renew"], seen))
    seen.clear()
    rig.go_on(6.0, refusing(rig, ["renew"], seen))
    assert [lease.renewals for lease in others] == [1] * 20
    # One probe of the other kind at each retry; by now the retries are half a second apart.
    assert 8 <= sum(command.what == "renew" for command in seen) <= 18


# -- rights ------------------------------------------------------------------------------------------------------------

FORBIDDEN = error("NOPERM User app has no permissions to run the 'evalsha' command")


def test_a_plain_command_that_is_forbidden_is_an_error(rig: Rig) -> None:
    lease = rig.hold("a")
    future: Future[bool] = rig.ask(lambda future: rig.engine.owned(lease, future))
    rig.reply("GET", error("NOPERM User app has no permissions to run the 'get' command"))
    failure(future, LockServerError, "NOPERM")


def test_what_may_have_been_granted_before_a_right_was_missing_is_cleaned_up(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.post(lambda: attempt.request.forbidden(["get"]))
    failure(attempt.future, LockServerError, "NOPERM")
    assert rig.whats() == ["SET", "release_many"]


def test_a_check_of_rights_that_fails_changes_nothing_about_what_is_known(rig: Rig) -> None:
    rig.hold("warm-up", 60.0)
    node, known = rig.engine.router.renewer.node, frozenset({"get"})
    node.missing_rights = known
    attempt = rig.acquire("a")
    rig.reply("rights", FORBIDDEN)
    assert node.missing_rights == known
    failure(attempt.future, LockServerError, "NOPERM")
