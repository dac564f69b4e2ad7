"""What a hostile server may say, by form: at random, from a seed, and mostly nearly right."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

_HEADS = b"+-:$*%~>|,(#_=!\r\n\x00a"
_SIZES = (0, 1, 2, 3, 5, 16, 99, 1000, 9999, 16385, 100_000, 2**31 - 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 10**40)
_LINES = (b"OK", b"", b"PONG", b"QUEUED", b"\xff\xfe", b"a\nb", b"x" * 5000)
_ERRORS = (
    *(b"ERR", b"NOSCRIPT No matching script", b"WRONGTYPE Operation", b"READONLY You can't", b"LOADING", b"BUSY"),
    *(b"NOPERM this user has no permissions to run the 'set' command", b"OOM", b"MISCONF", b"", b" ", b"\xff\xfe oops"),
    *(
        b"CLUSTERDOWN",
        b"TRYAGAIN",
        b"CROSSSLOT",
        b"ERR invalid request, key",
        b"NOAUTH",
        b"ERR unknown command 'EVALSHA'",
    ),
)
_HOSTS = (
    *(b"", b"?", b"127.0.0.1", b"::1", b"a" * 300, b"\xff\xfe", b"host\r\nname", b"h\x00st", b"localhost"),
    b"\xe2\x80\xae",  # text that runs from right to left
)
_RESP3 = (b"%1\r\n*0\r\n:1\r\n", b"#t\r\n", b",1.5\r\n", b"_\r\n", b"=5\r\ntxt:a\r\n")
_CHANNELS = (b"wheel_lock:wake:{a}", b"other", b"+switch-master", b"", b"\xff", b"c" * 5000)


class Replies:
    """A source of replies.

    Args:
        seed: The same one gives the same replies.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.forms: dict[str, Callable[[], bytes]] = {
            "data": self.data,
            "cluster": partial(self._mostly, self.slot_map),
            "sentinel": partial(self._mostly, self.master),
            "pubsub": partial(self._mostly, self.push),
        }

    def data(self) -> bytes:
        """Say anything."""
        some = self._random
        if some.random() < 0.15:  # a refusal, and a list of exceptions
            items = [self._integer(some.choice((1, 30_000))), self._text((b"hash", b"\xff", *_ERRORS))]
            return self._broken(self._list(items[: some.choice((1, 2, 2))] * some.choice((1, 1, 2))))
        return self._broken(self._value(0))

    def redirection(self) -> bytes:
        """Send somewhere else."""
        some = self._random
        where = (
            self._bytes_of(_HOSTS)
            + some.choice((b":", b"", b"::"))
            + some.choice((b"%d" % self._size(), b"abc", b"6379"))
        )
        slot = some.choice((b"%d" % some.randrange(16384), b"%d" % self._size(), b"-1", b"x", b"\xc2\xb2"))
        return self._broken(b"-" + some.choice((b"MOVED", b"ASK")) + b" " + slot + b" " + where + b"\r\n")

    def slot_map(self) -> bytes:
        """Tell who owns which slots."""
        some = self._random
        ranges = []
        for _ in range(some.choice((0, 1, 1, 2, 3))):
            nodes = [
                self._list(
                    [self._text(_HOSTS), self._integer(), self._text((b"id", b"\xff"))][
                        : some.choice((3, 3, 3, 2, 1, 0))
                    ]
                )
                for _ in range(some.choice((1, 1, 2, 0)))
            ]
            ranges.append(self._list([self._integer(0), self._integer(16383), *nodes]))
        return self._broken(self._list(ranges))

    def master(self) -> bytes:
        """Tell the state of a master, and its address."""
        some = self._random
        fields = []
        for name in (b"name", b"ip", b"port", b"flags", b"num-other-sentinels", b"config-epoch", b"runid", b"quorum"):
            if some.random() < 0.95:
                fields += [self._text((name,)), self._text((b"master", b"1", b"26379", b"-1", b"abc", *_HOSTS))]
        address = self._list([self._text(_HOSTS), self._text((b"6379", b"0", b"-1", b"99999999999", b"abc", b"\xff"))])
        return self._broken(self._list(fields) + some.choice((address, address, b"*-1\r\n", self._value(0))))

    def push(self) -> bytes:
        """Tell a subscriber something."""
        some = self._random
        kinds = (
            b"message",
            b"subscribe",
            b"unsubscribe",
            b"pong",
            b"smessage",
            b"ssubscribe",
            b"sunsubscribe",
            b"\xff",
        )
        said = []
        for _ in range(some.choice((1, 1, 1, 3, 20))):
            what = [self._text(kinds), self._text(_CHANNELS)]
            what.append(some.choice((self._text((b"0", b"", b"mymaster 1 2 3 4")), self._integer(), self._value(0))))
            said.append(self._list(what[: some.choice((3, 3, 3, 2, 1))]))
        return self._broken(b"".join(said))

    def _mostly(self, form: Callable[[], bytes]) -> bytes:
        return form() if self._random.random() < 0.8 else self.data()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _size(self) -> int:
        return self._random.choice(_SIZES)

    def _integer(self, usual: int = 6379) -> bytes:
        some = self._random
        value = (
            usual
            if some.random() < 0.7
            else some.choice((-1, 1, some.randrange(-5, 20000), self._size(), -self._size()))
        )
        return b":%d\r\n" % value if some.random() < 0.98 else self._value(0)

    def _bytes_of(self, choices: tuple[bytes, ...]) -> bytes:
        some = self._random
        return some.choice(choices) if some.random() < 0.95 else some.randbytes(some.randrange(40))

    def _text(self, choices: tuple[bytes, ...]) -> bytes:
        text = self._bytes_of(choices)
        return b"$%d\r\n%b\r\n" % (len(text), text) if self._random.random() < 0.98 else self._value(1)

    def _list(self, items: list[bytes]) -> bytes:
        wrong = self._random.random() < 0.02
        return b"*%d\r\n%b" % (self._size() if wrong else len(items), b"".join(items))

    def _value(self, depth: int) -> bytes:
        some = self._random
        kind = some.randrange(9)
        if kind == 0:
            return b"+" + some.choice(_LINES) + b"\r\n"
        if kind == 1:
            return b"-" + some.choice(_ERRORS) + b"\r\n"
        if kind == 2:
            return (
                b":"
                + some.choice((b"%d" % some.randrange(-3, 4), b"%d" % self._size(), b"-0", b"abc", b"", b"+1"))
                + b"\r\n"
            )
        if kind == 3:
            return some.choice((b"$-1\r\n", b"*-1\r\n", b"$-2\r\n", b"*-2\r\n", b"*0\r\n", b"$0\r\n\r\n"))
        if kind == 4:
            text = some.randbytes(some.choice((0, 1, 8, 40, 2000)))
            return b"$%d\r\n%b\r\n" % (len(text), text)
        if kind == 5:
            return b"$%d\r\n%b\r\n" % (self._size(), b"x" * some.randrange(40))
        if kind == 6 and depth < 6:
            items = [self._value(depth + 1) for _ in range(some.choice((0, 1, 2, 2, 4)))]
            return b"*%d\r\n%b" % (len(items) if some.random() < 0.8 else self._size(), b"".join(items))
        if kind == 7:
            return bytes([some.choice(_HEADS)]) + b"%d\r\n" % self._size() + b"*0\r\n:1\r\n" * some.randrange(3)
        return some.choice((b"*1\r\n" * 200, b"*9\r\n" * 20, *_RESP3))

    def _broken(self, reply: bytes) -> bytes:
        some = self._random
        if some.random() < 0.8 or not reply:
            return reply
        at = some.randrange(len(reply))
        what = some.randrange(5)
        if what == 0:
            return reply[:at]
        if what == 1:
            return reply[:at] + bytes([some.randrange(256)]) + reply[at + 1 :]
        if what == 2:
            return reply[:at] + reply[at + 1 :]
        if what == 3:
            return reply[:at] + some.choice((b"\r\n", b"*", b"*4294967295\r\n", b"%1\r\n", b"$")) + reply[at:]
        return reply + reply
