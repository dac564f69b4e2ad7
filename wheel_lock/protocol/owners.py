"""The format of a token that names its owner, and the short id of a token.

A token that names its owner is ``@<owner>:<token>``: the owner, percent-encoded, and a token of this library. The
encoded owner has 1 to 192 characters, all printable ASCII without ``:``. So the first colon ends it, and whatever
a lock type appends to a token (a secret, the number of a thread) stays where it is, at the end. Members of sorted sets
have their letter in front: ``r:@<owner>:<token>``.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote_to_bytes

from wheel_lock.options import MAX_OWNER_LENGTH

_MAX_ENCODED = 3 * MAX_OWNER_LENGTH
_PLAIN = "!\"#$&'()*+,/;<=>?@[\\]^`{|}"  # printable ASCII without encoding, beside letters, digits and _.-~
_OWNED = re.compile(
    rb"(?:[rwp]:)?@([!-9;-~]{1,%d}):[A-Za-z0-9+/]{22,}(?::[0-9]+)?" % _MAX_ENCODED,
)


def owner_head(owner: str) -> bytes:
    """Return the head of the tokens of ``owner``, which :func:`wheel_lock.options.readable_text` has accepted.

    >>> owner_head("billing@host-7"), owner_head("a b:c")
    (b'@billing@host-7:', b'@a%20b%3Ac:')
    """
    return b"@%b:" % quote(owner, safe=_PLAIN).encode()


def client_name(owner: str) -> str:
    """Return the name of a connection of ``owner``. CLIENT SETNAME accepts printable ASCII without spaces only.

    >>> client_name("host-7:4711"), client_name("night shift")
    ('wheel_lock:host-7:4711', 'wheel_lock:night%20shift')
    """
    return f"wheel_lock:{quote(owner, safe=_PLAIN + ':')}"


def owner_of(token: bytes) -> str | None:
    """Return the owner at the head of a token or a member; None if it names none. Never raises.

    >>> owner_of(b"@a%20b:" + b"x" * 22), owner_of(b"r:@billing:" + b"x" * 44), owner_of(b"x" * 22)
    ('a b', 'billing', None)
    """
    found = _OWNED.fullmatch(token)
    if found is None:
        return None
    owner = unquote_to_bytes(found[1]).decode("utf-8", "replace")
    # Any client can write such a value: one that this library does not make could garble a terminal.
    return owner if 1 <= len(owner) <= MAX_OWNER_LENGTH and owner.isprintable() else None


def token_id(token: bytes) -> str:
    """Return the first eight hexadecimal digits of the SHA-256 of a token (``lock.token``).

    The digits of the token itself are not used: a token that a caller has chosen may be short, and all of it secret.

    >>> token_id(b"secret")
    '2bb80d53'
    """
    return hashlib.sha256(token, usedforsecurity=False).hexdigest()[:8]
