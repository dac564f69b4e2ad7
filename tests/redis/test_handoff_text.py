"""The text of a handoff: it works once and as it was written, and it is a secret."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from typing import Any

import pytest

from tests.redis.test_secrets import Listener
from tests.support.backend import BOTH, Backend, token_of
from wheel_lock import InvalidHandoff, Lock, LockContext, LockLost, LossReason, WheelLockError
from wheel_lock.lock_types import EVERLASTING
from wheel_lock.options import lock_options
from wheel_lock.protocol.handoff import Handoff

pytestmark = pytest.mark.servers("real")

NAME = "import:2026"
PREFIX = "wheel_lock-handoff-1:"


def contents(text: str) -> dict[str, Any]:
    body = text.removeprefix(PREFIX).partition(".")[0]
    values: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
    return values


def sealed(body: bytes | str) -> str:
    """Body and checksum, as a reader of the source would write them."""
    if isinstance(body, bytes):
        body = base64.urlsafe_b64encode(body).decode()
    checksum = hashlib.sha256(body.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{PREFIX}{body}.{checksum}"


def forged(text: str, **changes: Any) -> str:
    return sealed(json.dumps(contents(text) | changes).encode())


# As it was written


@BOTH
def test_a_text_works_once(context: LockContext, lock: Lock) -> None:
    text = lock.export()
    adopted = context.adopt(text)
    with pytest.raises(LockLost) as caught:
        context.adopt(text)
    assert caught.value.reason is LossReason.TAKEN
    assert adopted.is_held
    again = adopted.export()
    assert again != text
    context.adopt(again).release()
    for used in (text, again):
        with pytest.raises(LockLost) as caught:
            context.adopt(used)
        assert caught.value.reason is LossReason.KEY_GONE


def test_a_text_that_is_cut_or_changed_anywhere_is_refused(context: LockContext, lock: Lock) -> None:
    text = lock.export()
    wrong = [text[:length] for length in range(len(text))]
    wrong += [text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :] for at in range(len(text))]
    wrong += [text + "0", text + text, text.upper(), text[::-1], "", " ", "\x00", "nonsense", text.replace(":", "")]
    for changed in wrong:
        with pytest.raises(InvalidHandoff):
            context.adopt(changed)
    for end in ("\n", "\r\n", " "):  # what a line ends with does no harm, and all this has not used it up
        text = context.adopt(text + end).export()


FORGERIES: list[dict[str, Any]] = [
    *({"name": name} for name in ("", base64.b64encode(b"n" * 513).decode(), 7)),
    *({"name": "AA=", "bytes": True}, {"name": base64.b64encode(b"\xff").decode(), "bytes": False}),
    *({"token": token} for token in ("", None, base64.b64encode(b"t" * 513).decode())),
    *({"kind": kind} for kind in ("everlasting", ["exclusive"], None, "exclusive", "fair", "k" * 1000)),
    *({"fence": fence} for fence in (-1, True, "7", 0, 1.0, 2**53, 10**2000, None)),
    *({"timeout": timeout} for timeout in (0, -1.0, math.nan, 1e12, "20", [20], 10**2000)),
    *({"renew_every": every} for every in (20.0, 0.0, "1", 10**2000)),
    *({"max_renewals": times} for times in (-1, 1.5, 10**2000)),
    *({"hold_until": until, "hold_left": 5.0} for until in (0.0, 7, math.nan, math.inf, "tomorrow", None)),
    *({"hold_until": 1e12, "hold_left": left} for left in (0.0, -1.0, 7, math.nan, math.inf, "long")),
]


def test_a_forged_text_is_refused_before_anything_is_asked(real: Backend, lock: Lock) -> None:
    context, text = real.context(), lock.export()
    for changes in FORGERIES:
        forgery = forged(text, **changes)
        with pytest.raises(InvalidHandoff):
            assert context.adopt(forgery) is changes
    assert context.stats().connects == 0
    context.adopt(forged(text)).release()


def test_a_text_of_something_else_is_refused(context: LockContext) -> None:
    bodies: list[bytes | str] = [b"", b"7", b"[]", b"{}", b"null", b"\xff", b'"text"', b"[" * 100_000, b"9" * 5000]
    for body in [*bodies, "no base64!", "\ud800", "é"]:
        with pytest.raises(InvalidHandoff):
            context.adopt(sealed(body))
    wrong: Any
    for wrong in (None, 7, b"text", ["text"], object()):
        with pytest.raises(InvalidHandoff, match="This is not the text of an exported lock"):
            context.adopt(wrong)


def test_a_text_may_be_as_long_as_its_name_and_token_can_be_and_no_longer(backend: Backend) -> None:
    context = backend.context()
    lock = context.lock("\x7f" * 512, timeout=20.0, fencing=True, max_hold=1000.0, max_renewals=2**53 - 1)
    assert lock.acquire()
    text = lock.export()
    assert len(text) < 4096 // 2
    with pytest.raises(InvalidHandoff, match="at most 4096 characters"):
        backend.context().adopt(text + "A" * 4096)
    context.adopt(text).release()


@pytest.mark.parametrize("by", [1, -1, 10**6, -(10**15)])
@pytest.mark.parametrize("kind", ["lock", "fair_lock"])
def test_a_fence_that_is_not_the_locks_own_is_refused(backend: Backend, kind: str, by: int) -> None:
    context = backend.context()
    lock = getattr(context, kind)(NAME, timeout=20.0, fencing=True)
    assert lock.acquire()
    text, token = lock.export(), backend.view.get(NAME)
    for _ in range(2):
        with pytest.raises(InvalidHandoff, match="fence in the text is not the one that the lock 'import:2026' has"):
            context.adopt(forged(text, fence=lock.fence + by))
    assert backend.view.get(NAME) == token
    assert context.stats().held == 0
    with context.adopt(text) as adopted:
        assert adopted.fence == lock.fence


# Other kinds


def test_kinds_that_cannot_be_handed_over_say_so_and_stay_held(context: LockContext) -> None:
    lock = Lock(context._engine, EVERLASTING, NAME, lock_options(30.0), None)
    lock.acquire()
    with pytest.raises(WheelLockError, match="A lock of the kind 'everlasting' cannot be handed over"):
        lock.export()
    assert lock.is_held
    lock.release()


# It is a secret


def test_neither_the_text_nor_a_token_is_ever_shown(real: Backend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    context = real.context()
    listener = Listener(caplog)
    lock = context.lock(NAME, fencing=True)
    lock.acquire()
    listener.tokens += [token_of(lock).decode(), base64.b64encode(token_of(lock)).decode()]
    text = lock.export()
    listener.tokens.append(text.removeprefix(PREFIX))
    listener.hear(repr(Handoff.from_text(text, b"")))
    for wrong in (text[:-1], text[1:], forged(text, timeout=0), forged(text, name=""), forged(text, kind="other")):
        listener.catch(lambda wrong=wrong: context.adopt(wrong))  # type: ignore[misc]
    real.view.set(NAME, "stranger")
    listener.catch(lambda: context.adopt(text))
    listener.catch(lock.release)
    listener.hear(repr(lock))
    real.view.set(NAME, token_of_text(text))
    adopted = context.adopt(text)
    listener.tokens.append(token_of(adopted).decode())
    listener.hear(repr(adopted))
    listener.hear(context.held())
    real.view.delete(NAME)
    listener.catch(adopted.release)
    listener.check()


def token_of_text(text: str) -> bytes:
    return base64.urlsafe_b64decode(contents(text)["token"])
