"""The arguments that commands share, and the ways in which a command ends.

Exit statuses of all commands:

====== ====================== ========================================================================================
status constant
====== ====================== ========================================================================================
0      ``OK``                 The command has done what it is for.
1      ``SERVER_TROUBLE``     No server, wrong password, TLS against plain text, a missing right, a server that is too
                              old, or no room for the output: one sentence on stderr. Also a run that lost a lock
                              (``demo``, ``hold``, ``bench``).
2      ``USAGE``              The command line is wrong, or a package is missing: one sentence on stderr.
3      ``NO``                 The answer of a command that is a question, where it documents one.
130    ``INTERRUPTED``        Ctrl-C.
141    ``PIPE_BROKEN``        The reader of stdout has ended.
143    ``TERMINATED``         SIGTERM.
====== ====================== ========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

OK = 0
SERVER_TROUBLE = 1
USAGE = 2
NO = 3
INTERRUPTED = 130
PIPE_BROKEN = 141
TERMINATED = 143

REDIS_VARIABLE = "WHEEL_LOCK_REDIS"
"""The environment variable with the URL of the server, for commands without ``--redis``."""


class Refusal(Exception):
    """An error that ends a command.

    Attributes:
        sentence: The text for stderr, without a full stop and without credentials.
        status: The exit status.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


def whole_number(text: str) -> int:
    """Return the value of an option as an int. Raises BadParameter, which shows the invalid text."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def any_number(text: str) -> float:
    """Return the value of an option as a float. Raises BadParameter, which shows the invalid text."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


@contextmanager
def options_checked() -> Iterator[None]:
    """Turn a ValueError about an option, which begins with the option's name, into a Refusal."""
    try:
        yield
    except ValueError as error:
        # What is checked as the name of a lock is made of a prefix.
        named = str(error).replace("a lock name", "prefix", 1).replace("renew_every", "renew-every")
        raise Refusal(f"--{named}", USAGE) from None


# Not typer's own parsers of numbers, because not all versions of it show the invalid text.
def count_option(meaning: str, *names: str) -> Any:
    """Return an option with a whole number. ``names``: as for ``typer.Option``."""
    return typer.Option(*names, parser=whole_number, metavar="NUMBER", help=meaning)


def seconds_option(meaning: str, *names: str) -> Any:
    """Return an option with a number of seconds. ``names``: as for ``typer.Option``."""
    return typer.Option(*names, parser=any_number, metavar="SECONDS", help=meaning)


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
