"""What Prometheus scrapes: over HTTP, under load, of all contexts, with bounded labels."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.conftest import use
from tests.support.backend import Backend
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason
from wheel_lock.observe.metrics import METRICS
from wheel_lock.observe.prometheus import Collector

HISTOGRAMS = [metric.prometheus_name for metric in METRICS if metric.kind == "histogram"]


Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Scraper:
    """What an endpoint shows of one label."""

    def __init__(self, port: int, label: str) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._label = label
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def families(self) -> dict[str, Metric]:
        with self._opener.open(self._url, timeout=30.0) as response:
            return parsed(response.read())

    def samples(self) -> Samples:
        return samples(self.families(), self._label)

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name][tuple(labels.items())]


def parsed(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def samples(families: dict[str, Metric], label: str) -> Samples:
    """The values by the name of the sample and its labels, without that of the context, which is `label`."""
    found: Samples = {}
    for family in families.values():
        for sample in family.samples:
            if sample.labels.get("context") == label:
                labels = tuple((name, value) for name, value in sample.labels.items() if name != "context")
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port at which the metrics of this process are served."""
    registry = CollectorRegistry()
    registry.register(Collector())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def scraper(port: int, label: str) -> Scraper:
    """What is served of contexts with that label."""
    return Scraper(port, label)


def buckets(found: Samples, name: str) -> list[float]:
    """The counts of the buckets, in the order of their bounds."""
    counts = {float(dict(labels)["le"]): value for labels, value in found[f"{name}_bucket"].items()}
    return [counts[bound] for bound in sorted(counts)]


def test_it_can_be_scraped_while_locks_are_acquired_renewed_and_released(
    labelled: LockContext, scraper: Scraper
) -> None:
    over = threading.Event()

    def work(name: str) -> None:
        while not over.is_set():
            with labelled.lock(name, timeout=5.0):
                pass

    held = labelled.acquire_many([f"held:{number}" for number in range(200)], timeout=9.0, renew_every=0.2)
    workers = [threading.Thread(target=work, args=(f"busy:{number}",)) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        earlier = scraper.samples()
        for _ in range(10):
            found = scraper.samples()
            for metric in METRICS:
                if metric.kind == "counter" and not metric.labels:
                    name = f"{metric.prometheus_name}_total"
                    assert found[name][()] >= earlier[name][()]
            for name in HISTOGRAMS[:5]:
                counts = buckets(found, name)
                assert counts == sorted(counts)
                assert counts[-1] == found[f"{name}_count"][()]
            assert found["wheel_lock_locks_held"][()] >= 0
            earlier = found
        eventually(lambda: scraper.value("wheel_lock_renewal_lag_seconds_count") >= 200)
    finally:
        over.set()
        for worker in workers:
            worker.join()
    labelled.release_many(held.values())
    found, stats = scraper.samples(), labelled.stats()
    assert found["wheel_lock_locks_acquired_total"][()] == stats.acquired
    assert (
        found["wheel_lock_renewals_total"][()]
        == stats.renewed
        == found["wheel_lock_renewal_time_left_seconds_count"][()]
    )
    assert found["wheel_lock_acquire_duration_seconds_count"][()] == stats.acquired
    assert found["wheel_lock_hold_duration_seconds_count"][()] == stats.released + stats.lost
    assert found["wheel_lock_hold_duration_seconds_sum"][()] > 0


def test_every_metric_has_its_kind_and_its_meaning(labelled: LockContext, scraper: Scraper) -> None:
    families = scraper.families()
    for metric in METRICS:
        family = families[metric.prometheus_name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)


def test_losses_and_callbacks_are_counted(labelled: LockContext, scraper: Scraper, real: Backend) -> None:
    called = threading.Event()
    lock = labelled.lock("lost", timeout=20.0, renew_every=0.1, on_lost=lambda event: called.set())
    lock.acquire()
    real.view.delete("lost")
    assert called.wait(30.0)
    # The callback's time is counted when it has returned.
    eventually(lambda: scraper.value("wheel_lock_callback_duration_seconds_count") == 1)
    assert scraper.value("wheel_lock_locks_lost_total", reason="key_gone") == 1
    lost = scraper.samples()["wheel_lock_locks_lost_total"]
    assert {labels[0][1] for labels in lost} == {reason.name.lower() for reason in LossReason}
    assert scraper.value("wheel_lock_hold_duration_seconds_count") == 1


def test_waiting_callers_are_seen(labelled: LockContext, scraper: Scraper) -> None:
    with labelled.lock("wanted"):
        waiter = Background(lambda: use(labelled.lock("wanted")))
        eventually(lambda: scraper.value("wheel_lock_callers_waiting") == 1)
        assert 0 < scraper.value("wheel_lock_wait_longest_seconds") < 60
    waiter.result()


def test_names_are_labels_only_if_asked_for_and_as_many_as_allowed(
    labelled: LockContext, label: str, scraper: Scraper
) -> None:
    names = [f"name:{number}" for number in range(5)]
    locks = labelled.acquire_many(names)
    assert "name:0" not in str(scraper.samples())
    registry = CollectorRegistry()
    registry.register(Collector(max_names=3))
    found = samples(parsed(generate_latest(registry)), label)
    held, remaining = found["wheel_lock_lock_held_seconds"], found["wheel_lock_lock_remaining_seconds"]
    assert list(held) == list(remaining) == [(("lock", name),) for name in names[:3]]
    assert all(0 < left < 30 for left in remaining.values())
    labelled.release_many(locks.values())


def test_the_label_is_the_owner_s_or_the_server_s_by_default(real: Backend) -> None:
    assert real.context(owner="billing@host")._engine.label == "billing@host"
    assert real.context(owner="billing@host", label="billing")._engine.label == "billing"
    assert real.context()._engine.label == f"127.0.0.1:{real.port}"


def test_the_nodes_of_a_quorum_have_figures_of_their_own(
    masters: list[RedisServer], label: str, scraper: Scraper
) -> None:
    clients = [master.client() for master in masters]
    with (
        LockContext.quorum(clients, label=label, node_timeout=5.0) as context,
        context.lock("vote", timeout=20.0, renew_every=0.1),
    ):
        eventually(
            lambda: len(counts := scraper.samples()["wheel_lock_node_renewals_total"]) == 3 and min(counts.values())
        )
        found = scraper.samples()
        assert found["wheel_lock_locks_held"][()] == found["wheel_lock_locks_acquired_total"][()] == 1
        nodes = {(("node", f"127.0.0.1:{master.port}"),) for master in masters}
        assert set(found["wheel_lock_node_renewals_total"]) == set(found["wheel_lock_node_connected"]) == nodes


def test_a_second_collector_in_one_registry_is_refused() -> None:
    registry = CollectorRegistry()
    registry.register(Collector())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector())


@pytest.mark.parametrize("most", [-1, 1001, 1.5, "ten", None, True])
def test_max_names_is_checked(most: object) -> None:
    with pytest.raises(ValueError, match="max_names"):
        Collector(max_names=most)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["", "x" * 65, "two\nlines", b"bytes", 7])
def test_a_label_is_checked(real: Backend, bad: object) -> None:
    with pytest.raises(ValueError, match="label"):
        real.context(label=bad)
    with pytest.raises(ValueError, match="label"):
        LockContext.quorum([real.client(port=port) for port in (1, 2, 3)], label=bad)  # type: ignore[arg-type]
