"""The command ``doctor``: its arguments, the order of the checks, and its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from wheel_lock.cli import output, server, target
from wheel_lock.cli.arguments import REDIS_VARIABLE, AsJson, count_option, prefix_option, seconds_option
from wheel_lock.cli.doctor import distances, neighbours, rights, settings
from wheel_lock.cli.doctor.findings import Finding, Result, Severity, user_of, worst
from wheel_lock.cli.target import Target
from wheel_lock.options import MIN_RENEWED_TIMEOUT_S

WARNED = 3
ENDANGERED = 4
_STATUS = {Severity.OK: 0, Severity.UNKNOWN: 0, Severity.WARNING: WARNED, Severity.PROBLEM: ENDANGERED}
_STYLE = {Severity.OK: "green", Severity.UNKNOWN: "dim", Severity.WARNING: "yellow", Severity.PROBLEM: "bold red"}


def doctor(
    redis: Annotated[
        list[str],
        typer.Option(
            "--redis",
            envvar=REDIS_VARIABLE,
            metavar="URL",
            help="A server, its Sentinels, or a cluster; several times for the masters of a quorum.",
        ),
    ],
    prefix: Annotated[str, prefix_option("What the names of the locks in use begin with.")] = "",
    timeout: Annotated[
        float, seconds_option("timeout", "The shortest timeout of the locks in use.", least=MIN_RENEWED_TIMEOUT_S)
    ] = 30.0,
    min_replicas: Annotated[int, count_option("min-replicas", "The min_replicas of the contexts in use.", least=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Check a server for what endangers locks, and say what to do about it.

    Each kind of lock is acquired, extended and released once on a name of its own below the prefix. At most 10,000 keys
    of the prefix are looked at, and none is changed.

    A command that the server refuses leaves its check unknown, and the others are made.

    Ends with status 0 if nothing was found; 1 if no server is there, or all refuse the connection; 2 if the command line is
    wrong; 3 if there are warnings; 4 if there are problems; 130 if it was interrupted.
    """
    with ExitStack() as stack:
        found, findings = _targets(redis, stack)
        findings += _findings(found, prefix, timeout, min_replicas, output.Progress(quiet=True))
    if as_json:
        output.line(output.to_json({"worst": worst(findings), "findings": [asdict(finding) for finding in findings]}))
    else:
        _show(output.console(), findings)
    raise typer.Exit(_STATUS[worst(findings)])


def _targets(urls: Sequence[str], stack: ExitStack) -> tuple[list[Target], list[Finding]]:
    """Return the targets that are there, and a finding for each of the others. Raises ServerTrouble if none is there."""
    found: list[Target] = []
    troubles: list[server.ServerTrouble] = []
    for url in urls:
        try:
            found.append(stack.enter_context(closing(target.find(url))))
        except server.ServerTrouble as trouble:
            troubles.append(trouble)
    if not found:
        raise troubles[0]
    return found, [Finding(settings.CONNECTION, Severity.PROBLEM, trouble.sentence) for trouble in troubles]


def _findings(
    found: Sequence[Target], prefix: str, timeout_s: float, min_replicas: int, progress: output.Progress
) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    answering = []
    with output.messages(), progress:
        progress.stage("settings", 0.0)
        for each in found:
            for master in each.masters:
                results = settings.results_of(master, each.version, min_replicas)
                if settings.CONNECTION not in results:
                    answering.append(master)
                yield from _of(server.address(master), results)
        progress.stage("clocks and round trips", 0.3)
        yield from distances.findings_of(answering, timeout_s)
        for number, each in enumerate(found):
            progress.stage("rights", 0.5 + 0.3 * number / len(found))
            yield from _of(each.address, rights.results_of(each.client, user_of(each.masters[0]), prefix))
        for each in found:
            progress.stage("keys", 0.8)
            result = neighbours.result_of(each, prefix, lambda share: progress.advance(0.8 + 0.2 * share))
            yield from _of(each.address, {"keys": result})


def _of(address: str, results: Mapping[str, Result]) -> Iterator[Finding]:
    return (Finding(check, *result, server=address) for check, result in results.items())


def _show(console: Console, findings: Sequence[Finding]) -> None:
    """Print the findings, the worst last, where it is read first. Those that differ in check or server only are one."""
    order = list(Severity)
    ranked = sorted(_merged(findings), key=lambda finding: order.index(finding.severity))
    if output.pretty(console):
        table = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(), padding=(0, 2))
        for finding in ranked:
            text = Text(finding.text)
            if finding.server:
                text.append(f" [{finding.server}]", style="dim")
            if finding.advice:
                text.append(f"\n-> {finding.advice}", style="cyan")
            mark = Text(finding.severity.value, style=_STYLE[finding.severity])
            table.add_row(mark, Text(finding.check), text)
        console.print(table)
    else:
        for finding in ranked:
            place = f" [{finding.server}]" if finding.server else ""
            output.line(f"{finding.severity.value:<8} {finding.check:<18} {finding.text}{place}")
            if finding.advice:
                output.line(f"{'':8} -> {finding.advice}")
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    summary = ", ".join(f"{number} {severity.value}" for severity, number in counts.items() if number)
    console.print(Text(summary, style=_STYLE[worst(findings)]))


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for all that are alike but for the server, and then for all that are alike but for the check."""
    of_checks: dict[Finding, list[str]] = {}
    for finding in findings:
        of_checks.setdefault(replace(finding, server=""), []).append(finding.server)
    alike: dict[Finding, list[str]] = {}
    for finding, servers in of_checks.items():
        one = replace(finding, check="", server=", ".join(dict.fromkeys(servers)))
        alike.setdefault(one, []).append(finding.check)
    return [
        replace(finding, check=checks[0])
        if len(checks) == 1
        else replace(finding, check=f"{len(checks)} checks", text=f"{', '.join(checks)}: {finding.text}")
        for finding, checks in alike.items()
    ]
