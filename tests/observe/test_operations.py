"""The dashboard, the alert rules and the tables of docs/operations: each metric that they name is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from wheel_lock.observe.log_fields import log_fields
from wheel_lock.observe.metrics import LOCK_HELD, LOCK_REMAINING, METRICS
from wheel_lock.options import DRIFT, lock_options

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
EXPORTED = {f"{metric.prometheus_name}{part}": metric for metric in METRICS for part in PARTS[metric.kind]}
LABELS = {"job", "instance", "le"}  # labels of Prometheus itself


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((OPERATIONS / "grafana-dashboard.json").read_text())


@pytest.fixture(scope="module")
def rules() -> list[Any]:
    loaded = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())
    assert set(loaded) == {"groups"}
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def check(expression: str) -> None:
    """Check the names of metrics and labels of a PromQL expression, and its brackets."""
    names = re.findall(r"wheel_lock_\w+", expression)
    assert names, expression
    for name in names:
        assert name in EXPORTED, f"{name} is not exported"
    allowed = LABELS | {"context"} | {label for name in names for label in EXPORTED[name].labels}
    selectors = re.findall(r"\{([^}]*)\}", expression)
    used = {label for selector in selectors for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)}
    used |= {
        label for some in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression) for label in some.split(", ")
    }
    assert used <= allowed, expression
    for name in re.findall(r"(?:rate|increase)\((wheel_lock_\w+)", expression):
        assert EXPORTED[name].kind != "gauge", f"{name} is a gauge, which has no rate"
    if "histogram_quantile" in expression:
        assert all(name.endswith("_bucket") for name in names)
        assert re.search(r"by \([^)]*\ble\b", expression)
    depth = []
    pairs = {")": "(", "}": "{", "]": "["}
    for character in re.sub(r'"[^"]*"', "", expression):
        if character in pairs.values():
            depth.append(character)
        elif character in pairs:
            assert depth.pop() == pairs[character], expression
    assert depth == [], expression


def test_each_panel_of_the_dashboard_has_what_grafana_needs(dashboard: Any) -> None:
    assert dashboard["title"] == "wheel_lock"
    assert dashboard["schemaVersion"] >= 36
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "job", "instance", "context"}
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)


def test_the_dashboard_shows_exported_metrics(dashboard: Any) -> None:
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in expressions:
        check(expression)
        used = set(re.findall(r"\$(?!__)(\w+)", expression))
        assert used <= {"job", "instance", "context"}
    for variable in dashboard["templating"]["list"][1:]:
        check(variable["query"]["query"].replace("label_values", ""))
    shown = {EXPORTED[name].name for text in expressions for name in re.findall(r"wheel_lock_\w+", text)}
    current = [metric for metric in METRICS if not metric.meaning.startswith("The former name")]
    assert {metric.name for metric in current if metric.kind == "histogram" and not metric.labels} <= shown


def test_alert_rules_have_what_prometheus_needs(rules: list[Any]) -> None:
    runbook = (OPERATIONS / "runbook.md").read_text()
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", runbook, re.M)
    }
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names) > 0
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        check(rule["expr"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page.endswith("/operations/runbook/")
        assert anchor in anchors, f"the runbook has no section {anchor}"


def test_a_node_that_is_away_is_an_alert_before_its_locks_are_lost(rules: list[Any]) -> None:
    (rule,) = [rule for rule in rules if rule["alert"] == "WheelLockNodeNotConnected"]
    options = lock_options()
    assert options.renew_every_s is not None
    left_s = options.timeout_s * DRIFT - options.renew_every_s  # where it was about to be renewed
    assert int(rule["for"].removesuffix("s")) < left_s - 5.0  # Prometheus looks now and then


def test_the_table_of_metrics_is_complete_and_right() -> None:
    text = (OPERATIONS / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(wheel_lock_\w+)`<br>`(wheel_lock[\w.]+)` \| (\w+) \| (.+?) \| (.+?) \|$", text, re.M)
    expected = [
        (metric.prometheus_name + ("_total" if metric.kind == "counter" else ""), metric.otel_name, metric.kind)
        for metric in (*METRICS, LOCK_HELD, LOCK_REMAINING)
    ]
    assert [row[:3] for row in rows] == expected
    for row, metric in zip(rows, (*METRICS, LOCK_HELD, LOCK_REMAINING), strict=True):
        assert row[3] == f"`{metric.unit}`"
        assert row[4].startswith(metric.meaning.rstrip("."))


def test_the_fields_of_log_records_are_listed() -> None:
    text = (OPERATIONS / "monitoring.md").read_text()
    for field in log_fields("event"):
        assert f"| `{field}` |" in text


def test_the_events_of_log_records_are_listed() -> None:
    rows = re.findall(r"^\| (`.+?`) \| [A-Z]", (OPERATIONS / "monitoring.md").read_text(), re.M)
    listed = {event for row in rows for event in re.findall(r"\w+", row)}
    sources = (path.read_text() for path in (OPERATIONS.parents[1] / "wheel_lock").rglob("*.py"))
    logged = {event for source in sources for event in re.findall(r'log_fields\(\s*"(\w+)"', source)}
    assert logged - {"lost"} <= listed  # the example of log_fields()
