"""Tokens are secrets: whatever goes wrong, none is in a log line, the text of an error, or a warning."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections.abc import Callable

import pytest

from tests.support.backend import LONG_S, Backend, Losses, connected, token_of
from tests.support.background import in_thread
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, WheelLockError
from wheel_lock.runtime.notifier import NOTIFIER

pytestmark = pytest.mark.servers("real")


class Listener:
    """Collects everything that a user could see, and the tokens that must not be in it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._texts: list[str] = []
        self.tokens: list[str] = []

    def hear(self, text: object) -> None:
        self._texts.append(str(text))

    def catch(self, call: Callable[[], object]) -> WheelLockError:
        """Call, expecting an error of the library's, and keep all of its text, that of its causes included."""
        with pytest.raises(WheelLockError) as caught:
            call()
        # Without the source lines of the frames, which are the test's own.
        error: BaseException | None = caught.value
        while error is not None:
            self._texts += traceback.format_exception_only(error)
            self._texts.append(repr(error.args))
            error = error.__cause__ or error.__context__
        return caught.value

    def check(self) -> None:
        assert NOTIFIER.drain(LONG_S)
        everything = "\n".join([*self._texts, self._caplog.text])
        assert everything
        assert self.tokens
        for token in self.tokens:
            assert token not in everything
            assert token[:12] not in everything, "not even a part that would do"


@pytest.fixture
def listener(caplog: pytest.LogCaptureFixture) -> Listener:
    caplog.set_level(logging.DEBUG)
    return Listener(caplog)


def test_a_session_of_losses_and_errors_shows_no_token(backend: Backend, listener: Listener) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        context = backend.context(track_acquisitions=True)
        losses = Losses()
        lock = context.lock("order:42", timeout=30.0, on_lost=losses)
        lock.acquire(token="A-TOKEN-OF-THE-USERS-OWN")
        listener.tokens.append(token_of(lock).decode())
        listener.catch(lock.acquire)
        in_thread(lambda: listener.catch(lock.release))
        listener.hear(lock)
        backend.view.delete("order:42")
        listener.catch(lambda: lock.extend(10.0))
        listener.catch(lock.release)
        listener.catch(lock.raise_if_lost)
        listener.hear(lock)
        listener.hear(losses.delivered())

        bulk = [lock for lock in context.acquire_many(["a", "b", "c"]).values() if lock is not None]
        listener.tokens += [token_of(lock).decode() for lock in bulk]
        backend.view.set("a", "theirs")
        backend.view.delete("b")
        listener.catch(lambda: context.release_many(bulk))

        # It is abandoned at its next renewal, and cannot be lost before, however busy the machine is.
        dropped = context.lock("dropped", timeout=30.0, renew_every=0.1)
        dropped.acquire()
        listener.tokens.append(token_of(dropped).decode())
        del dropped
        gc.collect()
        eventually(lambda: heard, LONG_S)

        kept = context.lock("kept", timeout=30.0, on_lost=losses)
        kept.acquire()
        listener.tokens.append(token_of(kept).decode())
        listener.hear(context.held())
        listener.hear(context.stats())
        listener.hear(repr(context))
        context.close()
        listener.catch(kept.release)
        listener.catch(kept.acquire)
        listener.hear(losses.delivered())
        for warning in heard:
            listener.hear(warning.message)
    listener.check()


def test_a_silent_or_dead_server_shows_no_token(fresh_redis: RedisServer, fresh: Backend, listener: Listener) -> None:
    context = connected(fresh.context(response_timeout=0.3))
    losses = Losses()
    locks = [context.lock(f"order:{number}", timeout=2.0, on_lost=losses) for number in range(4)]
    for lock in locks:
        lock.acquire()
        listener.tokens.append(token_of(lock).decode())
    fresh_redis.pause()
    listener.catch(lambda: locks[0].extend(1.0))
    listener.catch(locks[1].release)
    listener.catch(lambda: context.lock("order:43").acquire(token="A-TOKEN-OF-THE-USERS-OWN"))
    listener.tokens.append("A-TOKEN-OF-THE-USERS-OWN")
    fresh_redis.kill()
    eventually(lambda: len(losses.delivered()) == 3, LONG_S)
    listener.catch(locks[2].release)
    listener.catch(locks[3].acquire)
    for event in losses.events:
        listener.hear(event)
    listener.check()


@pytest.mark.parametrize("command", ["EVALSHA", "SET", "EXISTS"])
def test_an_error_in_which_the_server_repeats_the_command_shows_no_token(command: str, listener: Listener) -> None:
    # "ERR unknown command 'EVALSHA', with args beginning with: ..." and then the arguments, token included.
    with RedisServer(f'rename-command {command} ""') as server, Backend("real", server.port) as backend:
        losses = Losses()
        lock = backend.context().lock("a", timeout=2.0, on_lost=losses)
        if command == "SET":
            listener.tokens.append("A-TOKEN-OF-THE-USERS-OWN")
            listener.catch(lambda: lock.acquire(token="A-TOKEN-OF-THE-USERS-OWN"))
        else:
            lock.acquire()
            listener.tokens.append(token_of(lock).decode())
        if command == "EVALSHA":
            listener.catch(lambda: lock.extend(1.0))
            eventually(losses.delivered, LONG_S)
            listener.catch(lock.release)
        if command == "EXISTS":
            listener.catch(lock.locked)
            lock.release()
    listener.check()


def test_a_forged_log_line_is_escaped(backend: Backend, context: LockContext, caplog: pytest.LogCaptureFixture) -> None:
    name = "order\nWARNING forged: all is well\x1b[2J"
    lock = context.lock(name, timeout=30.0)
    lock.acquire()
    backend.view.delete(name)
    with pytest.raises(WheelLockError) as caught:
        lock.release()
    assert NOTIFIER.drain(LONG_S)
    for text in (str(caught.value), *(record.getMessage() for record in caplog.records)):
        assert text.isprintable()
    assert any("forged" in record.getMessage() for record in caplog.records)
