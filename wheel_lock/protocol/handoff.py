"""The text of an exported lock, which carries its lease from one process to another.

Whoever has the text can take the lock, and its checksum proves no origin. So each number in it has bounds, and the fence is
compared with the server's, see adopt.lua. Its token works once: adopt.lua replaces it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Self

from wheel_lock.errors import InvalidHandoff, quoted
from wheel_lock.options import MAX_SECONDS, LockOptions, count, lock_name, lock_options, lock_token

_PREFIX = "wheel_lock-handoff-1:"
_SUM_CHARACTERS = 16
_PLAIN_FIELDS = ("fence", "timeout", "renew_every", "max_renewals", "hold_until")  # fields that are copied unchanged
_MAX_CHARACTERS = 4096  # a name and a token of 512 bytes each, encoded twice, take 1,900


@dataclass(frozen=True, slots=True)
class Handoff:
    """The values of an exported lease.

    Attributes:
        name: The lock's name as its holder gave it. The text has it with the prefix of the context, as at the server.
        token: The exporter's token.
        lock_type: The name of its lock type.
        fence: Its fence, or None.
        timeout: Its time-to-live in seconds.
        renew_every: Seconds between renewals; None for no renewal.
        max_renewals: The number of renewals that are left, or None for no limit.
        hold_until: The end of its hold limit in seconds of the wall clock, the only clock that two machines share; or None.
        hold_left: How many seconds of its hold limit were left at the export, or None. An adopter holds it no longer than
            that, even if a wall clock has been set back.
    """

    name: str | bytes
    token: bytes = field(repr=False)
    lock_type: str
    fence: int | None
    timeout: float
    renew_every: float | None
    max_renewals: int | None
    hold_until: float | None
    hold_left: float | None

    def to_text(self, prefix: bytes) -> str:
        """Return the values as one line of ASCII, which is as secret as a token: it is enough to take over the lock."""
        name = self.name
        values: dict[str, Any] = {
            "bytes": isinstance(name, bytes),
            "name": _encode(lock_name(name, prefix)),
            "token": _encode(self.token),
            "kind": self.lock_type,
            **{field: getattr(self, field) for field in _PLAIN_FIELDS},
            "hold_left": self.hold_left,
        }
        body = _encode(json.dumps(values, separators=(",", ":")).encode())
        return f"{_PREFIX}{body}.{_sum(body)}"

    @classmethod
    def from_text(cls, text: object, prefix: bytes) -> Self:
        """Parse a text that :meth:`to_text` returned, for a context with this prefix.

        Raises:
            InvalidHandoff: It is another text, or has been changed, or its lock is not under the prefix.
        """
        if not isinstance(text, str) or not text.startswith(_PREFIX):
            raise InvalidHandoff("This is not the text of an exported lock")
        if len(text) > _MAX_CHARACTERS:
            raise InvalidHandoff(
                f"The text of an exported lock has at most {_MAX_CHARACTERS} characters, not {len(text)}"
            )
        body, _, checksum = text.removeprefix(_PREFIX).strip().partition(".")
        if checksum != _sum(body):
            raise InvalidHandoff("The text of this exported lock has been cut off or changed")
        try:
            values = json.loads(_decode(body))
            key = lock_name(_decode(values["name"]), b"")
            under = key.startswith(prefix)
            name = key.removeprefix(prefix)
            lock_name(name, prefix if under else b"")
            handoff = cls(
                name=name if values["bytes"] else name.decode(),
                token=lock_token(_decode(values["token"])),
                lock_type=values["kind"],
                **{field: values[field] for field in _PLAIN_FIELDS},
                hold_left=values.get("hold_left"),  # which earlier versions do not write
            )
            handoff.options()
            if handoff.fence is not None:
                count("the fence", handoff.fence, least=1)
            hold = handoff.hold_until, handoff.hold_left
            if hold[0] is None and hold[1] is not None:
                raise ValueError("the hold limit has no end")
            for each in hold:
                if each is not None and not (type(each) is float and math.isfinite(each)):
                    raise ValueError("the hold limit is not a number")
            if type(handoff.lock_type) is not str:
                raise ValueError("the lock type is not a text")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise InvalidHandoff(f"The text of this exported lock is invalid: {error}") from None
        if not under:
            raise InvalidHandoff(
                f"The lock {quoted(handoff.name)} cannot be adopted by this context: it is not under its prefix "
                f"{prefix.decode()!r}",
                handoff.name,
            )
        return handoff

    def hold_left_s(self, wall_s: float) -> float | None:
        """Return the seconds that are left of its hold limit at this time of the wall clock; None without a limit."""
        if self.hold_until is None:
            return None
        left_s = self.hold_until - wall_s
        return left_s if self.hold_left is None else min(left_s, self.hold_left)

    def options(self, *, max_hold: float | None = None, thread_local: bool = True) -> LockOptions:
        """Return the options of the lease that takes its place."""
        return lock_options(
            self.timeout,
            renew=self.renew_every is not None,
            renew_every=self.renew_every,
            max_renewals=self.max_renewals,
            max_hold=None if max_hold is None else min(max_hold, MAX_SECONDS),
            fencing=self.fence is not None,
            thread_local=thread_local,
        )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text, altchars=b"-_", validate=True)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "backslashreplace")).hexdigest()[:_SUM_CHARACTERS]
