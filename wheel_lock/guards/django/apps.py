"""The app that Django finds for ``"wheel_lock.guards.django"``."""

from django.apps import AppConfig


class _GuardsConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Has one migration, and no models."""

    name = "wheel_lock.guards.django"
    label = "wheel_lock_guards"
    verbose_name = "wheel_lock guards"
