"""Django's settings: a process can configure them once, and several modules of tests may run in one process."""

from __future__ import annotations

from typing import Any


def configure() -> None:
    """Django's own defaults, unless an earlier module has configured them."""
    from django.conf import settings

    if not settings.configured:
        settings.configure()


def overridden(**values: Any) -> Any:
    """A context in which Django has these settings."""
    configure()
    from django.test import override_settings

    return override_settings(**values)
