"""The command ``bench``: its arguments, the validation of these, and its output."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import (
    INTERRUPTED,
    REDIS_VARIABLE,
    USAGE,
    AsJson,
    OptionalRedisUrl,
    Refusal,
    checked,
    count_option,
    prefix_option,
    seconds_option,
)
from wheel_lock.cli.benchmark import figures
from wheel_lock.cli.benchmark.bench import Bench
from wheel_lock.options import MIN_RENEWED_TIMEOUT_S


def bench(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="The same as --redis. A node stands for its cluster, a Sentinel for its only master."
        ),
    ] = None,
    redis: OptionalRedisUrl = None,
    seconds: Annotated[float, seconds_option("seconds", "About how long to measure.", above=0.0)] = 20.0,
    locks: Annotated[int, count_option("locks", "How many locks to hold at most.", least=1)] = 10_000,
    timeout: Annotated[
        float,
        seconds_option(
            "timeout", "The time-to-live for which to say how many can be held.", least=MIN_RENEWED_TIMEOUT_S
        ),
    ] = 30.0,
    prefix: Annotated[str, prefix_option("What all names begin with; a random id follows.")] = "wheel-lock-bench:",
    as_json: AsJson = False,
) -> None:
    """Measure what it costs to keep locks alive on a server of your own.

    For about a fifth of the time the server is kept as busy as this client can. No key but those of the prefix and a
    random id is touched, and none is left behind: what a failure leaves expires within 30 seconds.

    Ends with status 0 if all was measured; 1 if the server is not there, refuses, fails, or a lock was lost, with a
    sentence on stderr; 2 if the command line is wrong; 130 or 143 if it was interrupted by Ctrl-C or SIGTERM.
    """
    with checked("--"):
        if "{" in prefix:
            raise ValueError(f"prefix must not contain a brace, or all names share one slot of a cluster: {prefix!r}")
    given = url or redis
    if given is None:
        raise Refusal(f"name a server: wheel-lock bench URL, --redis URL or {REDIS_VARIABLE}", USAGE)
    with closing(target.find(given, "URL" if url else "--redis")) as found:
        progress = output.Progress(quiet=as_json)
        measured = figures.Figures(
            server=found.address,
            kind=found.kind,
            masters=len(found.masters),
            redis_server=found.version,
            prefix=prefix,
            locks=locks,
            timeout_s=timeout,
            seconds=seconds,
        )
        try:
            with output.messages(), progress:
                Bench(found, measured, progress).run()
        except KeyboardInterrupt:
            sentence = f"interrupted again: what is not released yet expires within {figures.TTL_S:g} s"
            raise Refusal(sentence, INTERRUPTED) from None
    if measured.trouble is not None:
        output.complain(measured.trouble)
    if as_json:
        print(measured.to_json())
    else:
        figures.show(output.console(), measured)
    raise typer.Exit(measured.exit_status)
