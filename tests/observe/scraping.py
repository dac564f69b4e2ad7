"""Scrapes over HTTP, read by the parser of prometheus_client."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from wheel_lock.observe.prometheus import Collector

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


@contextmanager
def endpoint() -> Iterator[int]:
    """Serve the metrics of this process; the port."""
    registry = CollectorRegistry()
    registry.register(Collector())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
