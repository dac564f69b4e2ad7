"""Exporters without the packages that they need."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("exporter", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "opentelemetry")],
)
def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, exporter: str, package: str, extra: str) -> None:
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}.") or name == f"wheel_lock.observe.{exporter}":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}.*pip install 'wheel-lock\[{extra}\]'") as raised:
        importlib.import_module(f"wheel_lock.observe.{exporter}")
    assert raised.value.name == package


def test_the_package_imports_neither() -> None:
    code = (
        "import sys, wheel_lock, wheel_lock.testing; "
        "rooms = 'prometheus', 'opentelemetry'; "
        "exporters = ['prometheus_client', *('wheel_lock.observe.' + room for room in rooms)]; "
        "print([name for name in sys.modules if name in exporters])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
