"""What a hostile server may say, by form: what would be right, and what random changes make of it. From a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

from tests.support.fake_server import array, bulk

_SIZES = (0, 1, 2, 3, 16, 9999, 16385, 65536, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 10**40)
_TEXTS = (
    *(
        b"",
        b"?",
        b"OK",
        b"127.0.0.1",
        b"::1",
        b"a" * 300,
        b"c" * 5000,
        b"\xff\xfe",
        b"host\r\nname",
        b"h\x00st",
        b"hash",
    ),
    *(
        b"\xe2\x80\xae",
        b"1",
        b"abc",
        b"ERR",
        b"WRONGTYPE Operation",
        b"\xff\xfe oops",
    ),  # the first runs from right to left
)
_ERRORS = (
    *(
        b"ERR",
        b"NOSCRIPT No matching script",
        b"WRONGTYPE Operation",
        b"READONLY You can't",
        b"LOADING",
        b"BUSY",
        b"OOM",
    ),
    *(b"NOPERM this user has no permissions to run the 'set' command", b"MISCONF", b"", b" ", b"\xff\xfe oops"),
    *(
        b"CLUSTERDOWN",
        b"TRYAGAIN",
        b"CROSSSLOT",
        b"NOAUTH",
        b"ERR invalid request, key",
        b"ERR unknown command 'EVALSHA'",
    ),
    *(b"ERR Error running script", b"x" * 5000),
)
_DATA = (
    *(
        b"+OK\r\n",
        b"+PONG\r\n",
        b"+QUEUED\r\n",
        b":1\r\n",
        b":0\r\n",
        b":-1\r\n",
        b":+1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
    ),
    *(b"%1\r\n*0\r\n:1\r\n", b"#t\r\n", b",1.5\r\n", b"_\r\n", b"=5\r\ntxt:a\r\n", b"*1\r\n" * 200, b"*9\r\n" * 20),
    *(
        bulk(b"text"),
        bulk(b"x" * 2000),
        array(b":1\r\n", bulk(b"hash")),
        array(b":30000\r\n", bulk(b"string")),
        array(b":1\r\n"),
    ),
    *(array(b":1\r\n", bulk(error)) for error in _ERRORS),  # a list of exceptions
    *(b"-%b\r\n" % error for error in _ERRORS),
)
_NODE = array(bulk(b"127.0.0.1"), b":6379\r\n", bulk(b"id"))
_SLOTS = (array(b":0\r\n", b":99\r\n", _NODE, _NODE), array(b":100\r\n", b":16383\r\n", _NODE))
_FIELDS = (b"name", b"ip", b"port", b"flags", b"num-other-sentinels", b"config-epoch", b"runid", b"quorum")
_VALUES = (b"master", b"127.0.0.1", b"6379", b"master", b"2", b"1", b"abc", b"2")
_STATE = array(*(bulk(text) for pair in zip(_FIELDS, _VALUES, strict=True) for text in pair))
_ADDRESS = array(bulk(b"127.0.0.1"), bulk(b"6379"))
_KINDS = (*(b"message", b"subscribe", b"unsubscribe", b"pong", b"smessage", b"ssubscribe", b"sunsubscribe"),)
_PUSHES = tuple(
    array(bulk(kind), bulk(channel), what)
    for kind in _KINDS
    for channel in (b"wheel_lock:wake:{a}", b"+switch-master", b"other")
    for what in (bulk(b"0"), bulk(b"mymaster 1 2 3 4"), b":1\r\n")
)
_REDIRECTIONS = tuple(
    b"-%b %b %b\r\n" % (verb, slot, where)
    for verb in (b"MOVED", b"ASK")
    for slot in (b"5", b"16383", b"x", b"\xc2\xb2")
    for where in (b"127.0.0.1:6379", b":6379", b"?:6379", b"::1:6379", b"host", b"a" * 300 + b":1", b"127.0.0.1:abc")
)


class Replies:
    """A source of replies.

    Args:
        seed: The same one gives the same replies.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.data = partial(self._changed, _DATA)
        self.redirection = partial(self._changed, _REDIRECTIONS)
        self.forms: dict[str, Callable[[], bytes]] = {
            "data": self.data,
            "cluster": partial(self._changed, (array(*_SLOTS), array(_SLOTS[0]), array(), _DATA[0])),
            "sentinel": partial(self._changed, (_STATE + _ADDRESS, _STATE + b"*-1\r\n", _ADDRESS)),
            "pubsub": partial(self._changed, _PUSHES),
        }

    def _changed(self, among: tuple[bytes, ...]) -> bytes:
        some = self._random
        reply = b"".join(some.choices(among, k=some.choice((1, 1, 1, 1, 2, 20))))
        for _ in range(some.choice((0, 1, 1, 2, 5))):
            reply = some.choice((self._number, self._text, self._text, self._broken))(reply)
        return reply

    def _number(self, reply: bytes) -> bytes:
        """Have another number, be it a value or a length."""
        numbers = [*re.finditer(rb"-?\d+", reply)]
        if not numbers:
            return reply
        some = self._random
        number = some.choice((some.randrange(-5, 20_000), some.choice(_SIZES), -some.choice(_SIZES)))
        return _replaced(reply, some.choice(numbers), b"%d" % number)

    def _text(self, reply: bytes) -> bytes:
        """Have another text of the right length, or something else in its place."""
        texts = [*re.finditer(rb"\$\d+\r\n[^\r]*\r\n", reply)]
        some = self._random
        other = bulk(some.choice(_TEXTS)) if some.random() < 0.9 else some.choice(_DATA)
        return _replaced(reply, some.choice(texts), other) if texts else reply

    def _broken(self, reply: bytes) -> bytes:
        """Have bytes that are missing, wrong or too many."""
        some = self._random
        start = some.randrange(len(reply) + 1)
        put = some.choice((b"", bytes([some.randrange(256)]), b"\r\n", b"*", b"*4294967295\r\n", b"%1\r\n", b"$"))
        end = some.choice((start, start, start + 1, len(reply)))
        return reply[:start] + put + reply[end:]


def _replaced(reply: bytes, match: re.Match[bytes], by: bytes) -> bytes:
    return reply[: match.start()] + by + reply[match.end() :]
