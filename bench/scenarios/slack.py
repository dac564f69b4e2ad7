"""What it costs to keep N locks alive, by how much earlier than due a renewal may come to join others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench import page, plot
from bench.scenarios import Record, Run, Scenario, number, spread, values_of, why_not
from bench.scenarios.held import Case, at_once, numbers, timeouts, together

SLACKS = (0.0, 1 / 32, 1 / 8, 1 / 4, 1 / 2)


def measure(run: Run) -> Iterator[Record]:
    ours = next((rival for rival in run.rivals if rival.name == plot.OURS), None)
    if ours is None:
        return
    sides = {str(slack): slack for slack in run.pick(SLACKS, SLACKS, SLACKS[-2:])}
    rivals = [replace(ours, name=name, options={"renewal_slack": slack}) for name, slack in sides.items()]
    for locks in run.pick((1_000, 10_000, 100_000), (1_000, 10_000), (20, 50)):
        case = run.pick(Case(locks, 30.0), Case(locks, 30.0), Case(locks, 3.0, least_s=2.0))
        size = at_once(run, case)
        for first in range(0, len(rivals), size):
            run.say(f"slack: {locks:,} locks")
            for record in together(run, case, rivals[first : first + size]):
                yield record | {"rival": plot.OURS, "case": record["case"] | {"slack": sides[record["rival"]]}}


def slacks(records: Sequence[Record]) -> list[float]:
    return sorted({record["case"]["slack"] for record in records})


def tables(records: Sequence[Record]) -> str:
    timeout_s = max(timeouts(records), default=0.0)
    head = ["held", "slack", "client, µs", "server, µs", "commands/s"]
    rows = []
    for locks in numbers(records, timeout_s):
        for slack in slacks(records):
            case = {"locks": locks, "timeout_s": timeout_s, "slack": slack}
            commands, *costs = (
                values_of(records, plot.OURS, key, **case)
                for key in ("commands_per_s", "client_s_per_renewal", "server_s_per_renewal")
            )
            if commands:
                cells = [spread([value * 1e6 for value in cost]) for cost in costs]
                rows.append([f"{locks:,}", f"{slack:.3g}", *cells, number(statistics.median(commands))])
            else:
                why = why_not(record for record in records if record["case"] == case)
                rows.append([f"{locks:,}", f"{slack:.3g}", why, "", ""])
    return "\n\n".join([
        f"Locks of {timeout_s:g} s, each renewed every {timeout_s / 3:g} s, with several settings of wheel_lock's "
        "`renewal_slack`: the share of its interval by which a renewal may come early to join others. A side is a process "
        "with a server of its own; CPU is that of the whole process for a renewal. Medians, and in brackets the least and "
        "the largest.",
        page.markdown(head, rows),
    ])  # fmt: skip


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    timeout_s = max(timeouts(records), default=0.0)
    series = {
        f"{locks:,} locks": [
            (100 * slack, statistics.median(values) * 1e6)
            for slack in slacks(records)
            if (values := values_of(records, plot.OURS, "client_s_per_renewal", locks=locks, slack=slack))
        ]
        for locks in numbers(records, timeout_s)
    }
    what = "CPU of the client for a renewal"
    plot.lines(
        folder / "slack-client.svg", series, title=what, x="slack, % of the interval of renewals", y="µs", log_x=False
    )
    return {
        "slack-client.svg": f"{what} in µs, by how much earlier than due it may come to join others, as a share of the "
        f"interval; each lock has a timeout of {timeout_s:g} s and is renewed every {timeout_s / 3:g} s."
    }


SCENARIO = Scenario("slack", "Renewals that join others", "held", measure, tables, draw)
