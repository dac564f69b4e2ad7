"""The read-write lock: any number of readers, or one writer.

A writer that waits leaves word of it, which holds back new readers until it has had its turn, gives up, or is not heard of
any more. When a writer leaves while readers wait, the turn is theirs: so neither side can starve the other (they alternate,
as in the phase-fair locks of Brandenburg and Anderson, 2010).
"""

from __future__ import annotations

from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import Contention, Refusal
from wheel_lock.lock_types.exclusive import FENCE_TTL_MS
from wheel_lock.lock_types.shared import SharedSet, read_look
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, wake_channel
from wheel_lock.protocol.resp import Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import TOKEN_CHARACTERS, new_token


class _ReadWrite(SharedSet):
    """What both halves have in common."""

    registers_waiters = True

    def token(self) -> bytes:
        """The waiter's name, by which it leaves word, and a secret."""
        return super().token() + new_token()

    def next_token(self, first: bytes) -> bytes:
        """The waiter's name, and another secret."""
        return first[: len(self.prefix) + TOKEN_CHARACTERS] + new_token()

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        """The readers' and the writers'."""
        return wake_channel(key, b"read:"), wake_channel(key, b"write:")


class Read(_ReadWrite):
    """The half that is shared."""

    name = "read"
    prefix = b"r:"

    def wake_channel(self, key: bytes) -> bytes:
        """The readers'."""
        return self.channels(key)[0]

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that looks out for writers."""
        return Command(scripts.ACQUIRE_READ, 1, 4, lease.lease_args + int_arg(ttl_ms) + int_arg(waiter_ttl_ms))

    def parse_locked(self, reply: Reply) -> bool:
        """Whether there are readers."""
        return read_look(reply)[0] > 0


class Write(_ReadWrite):
    """The half that is not."""

    name = "write"
    prefix = b"w:"
    contention = Contention.FIRST_WAITER

    def wake_channel(self, key: bytes) -> bytes:
        """The writers'."""
        return self.channels(key)[1]

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that looks out for everybody."""
        key = lease.key
        keys = [key, fence_key(key)] if self.fenced else [key]
        body = b"".join(map(bulk_string, keys)) + bulk_string(lease.token) + int_arg(ttl_ms) + int_arg(waiter_ttl_ms)
        return Command(scripts.ACQUIRE_WRITE, len(keys), len(keys) + 4, body + int_arg(FENCE_TTL_MS))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence or 0, or a list of the time after which to ask again."""
        return replies.acquired(reply, fenced=self.fenced)

    def parse_locked(self, reply: Reply) -> bool:
        """Whether there is a writer."""
        return read_look(reply)[1] > 0


class FencedWrite(Write):
    """The same, and each grant draws a number that only grows."""

    name = "fenced write"
    fenced = True


READ = Read()
WRITE = Write()
FENCED_WRITE = FencedWrite()
