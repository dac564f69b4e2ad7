"""The arguments that commands share, and the ways in which a command ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from wheel_lock.options import MAX_COUNT, count, lock_name, seconds

# Exit statuses of all commands.
OK = 0
SERVER_TROUBLE = 1
"""No server, a wrong password, TLS against plain text, a missing right, a server that is too old, or no room for the
output: one sentence on stderr. Also a run of ``demo``, ``hold`` or ``bench`` that has lost a lock."""
USAGE = 2
"""The command line is wrong, or a package is missing: one sentence on stderr."""
NO = 3
"""The answer of a command that is a question, where it documents one."""
INTERRUPTED = 130  # by Ctrl-C
PIPE_BROKEN = 141  # the reader of stdout has ended
TERMINATED = 143  # by SIGTERM

REDIS_VARIABLE = "WHEEL_LOCK_REDIS"
"""The environment variable with the URL of the server, for commands without ``--redis``."""

_BEHIND_PREFIX = 40  # characters of a name behind its prefix, at most


class Refusal(Exception):
    """An error that ends a command.

    Attributes:
        sentence: The text for stderr, without a full stop and without credentials.
        status: The exit status.
    """

    def __init__(self, sentence: str, status: int = SERVER_TROUBLE) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


URL = re.compile(r"(?P<scheme>(https?|(redis|valkey)s?(\+(sentinel|cluster))?|unix)://).+", re.DOTALL)


def redacted(text: str) -> str:
    """Return ``text`` without what follows the scheme of the first URL in it: any part may belong to a password.

    >>> redacted("not redis://user:secret")
    'not redis://***'
    """
    return URL.sub(r"\g<scheme>***", text)


@contextmanager
def checked(prefix: str = "") -> Iterator[None]:
    """Turn a ValueError about the command line into a Refusal; ``prefix`` is what its sentence begins with."""
    try:
        yield
    except ValueError as error:
        named = str(error).replace("renew_every", "renew-every")
        raise Refusal(redacted(f"{prefix}{named}"), USAGE) from None


def _option(name: str, metavar: str, meaning: str, check: Callable[[str], object]) -> Any:
    """Return the option ``--name``, whose value is what ``check`` returns, or a Refusal if that raises ValueError."""

    def parser(text: str) -> object:
        with checked("--"):
            return check(text)

    return typer.Option(f"--{name}", parser=parser, metavar=metavar, help=meaning)


def count_option(name: str, meaning: str, *, least: int, most: int = MAX_COUNT) -> Any:
    """Return the option ``--name`` with a whole number from ``least`` to ``most``."""
    return _option(name, "NUMBER", meaning, lambda text: count(name, _number(int, text), least=least, most=most))


def seconds_option(name: str, meaning: str, *, least: float = 0.0, above: float | None = None) -> Any:
    """Return the option ``--name`` with a number of seconds, at least ``least`` and, if given, more than ``above``."""
    return _option(name, "SECONDS", meaning, lambda text: seconds(name, _number(float, text), least=least, above=above))


def prefix_option(meaning: str) -> Any:
    """Return the option ``--prefix`` with what the names of locks begin with."""
    return _option("prefix", "TEXT", meaning, _prefix)


# Not typer's own parsers of numbers, because not all versions of it show the invalid text.
def _number(kind: type[int] | type[float], text: str) -> object:
    """Return ``text`` as a number; as it is if it is none, which the check of the number refuses."""
    try:
        return kind(text)
    except ValueError:
        return text


def _prefix(text: str) -> str:
    try:
        lock_name(text + "0" * _BEHIND_PREFIX, b"")
    except ValueError as error:
        raise ValueError(str(error).replace("a lock name", "prefix", 1)) from None
    return text


_REDIS: Any = typer.Option(
    "--redis",
    envvar=REDIS_VARIABLE,
    metavar="URL",
    help="The server: redis://[user:password@]host:6379/0, rediss://, unix:///path, "
    "redis+sentinel://host:26379,host/MASTER/0 or redis+cluster://host:7000,host.",
)

RedisUrl = Annotated[str, _REDIS]
"""``--redis URL``, required unless WHEEL_LOCK_REDIS is set."""

OptionalRedisUrl = Annotated[str | None, _REDIS]
"""The same for commands with another way to name a server."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
"""``--json``."""
