"""What is said about a run."""

from __future__ import annotations

import dataclasses
import json

import pytest

from wheel_lock.cli.demo.report import Outcome, rows, summary

GOOD = Outcome(
    server="localhost:6379", locks=10, timeout_s=3.0, renew_every_s=1.0, seconds=2.0, interrupted=False, trouble=None,
    acquired=10, acquire_s=0.01, locks_per_s=1000.0, held_s=2.0, held_at_end=10, owned_at_end=10, lost=0,
    lost_by_reason={}, unknown=0, overdue=0, renewed=20, batches=4, renewals_per_s=10.0, renewal_lag_p50_s=0.001,
    renewal_lag_p99_s=0.002, renewal_lag_max_s=0.003, renewal_slack_min_s=1.9, renewed_acquiring=0,
    acquiring_lag_max_s=None, acquiring_slack_min_s=None, wheel_cpu_s=0.01, wheel_cores=0.005, server_cpu_s=None,
    server_cores=None, client_us_per_renewal=1.0, server_us_per_renewal=None, rss_bytes_per_lock=500.0, close_s=0.01,
    left_at_server=0, redis_server="7.0.15",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, 0, "Nothing was lost"),
        ({"lost": 1, "lost_by_reason": {"key gone": 1}, "owned_at_end": 9}, 1, "1 locks were LOST (key gone: 1)"),
        ({"lost": 1, "lost_by_reason": {"taken by another": 1}}, 1, "LOST"),
        ({"owned_at_end": 9}, 1, "9 of 10 were ours"),
        ({"owned_at_end": None, "trouble": "the server is gone"}, 1, "not known: the server is gone"),
        ({"acquired": 9, "owned_at_end": 9}, 1, "Only 9 of 10 locks could be acquired"),
        ({"interrupted": True}, 130, "Stopped by Ctrl-C"),
        ({"interrupted": True, "lost": 1, "lost_by_reason": {"key gone": 1}}, 130, "LOST"),
    ],
)
def test_the_summary_and_the_exit_status_agree(change: dict[str, object], status: int, words: str) -> None:
    outcome = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    assert outcome.exit_status == status
    assert words in summary(outcome)
    assert outcome.ok == ("Nothing was lost" in summary(outcome) and outcome.acquired == outcome.locks)


def test_a_loss_has_its_reason() -> None:
    assert ("lost", "3", "key gone: 3") in rows(dataclasses.replace(GOOD, lost=3, lost_by_reason={"key gone": 3}))


def test_what_is_not_known_is_null_and_a_dash() -> None:
    assert json.loads(GOOD.to_json())["server_cpu_s"] is None
    unknown = dataclasses.replace(GOOD, renewal_lag_p50_s=None, owned_at_end=None, left_at_server=None)
    shown = {what: value for what, value, _ in rows(unknown)}
    assert shown["lag p50"] == shown["owned at end"] == "-"
    assert {what: meaning for what, _, meaning in rows(unknown)}["released in"].startswith("- keys")
