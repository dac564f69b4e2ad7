"""Makes the table of guards, which no model reads."""

from typing import Any, ClassVar

from django.db import migrations

from wheel_lock.guards.connections import create


def forwards(apps: Any, editor: Any) -> None:
    """Make the table in the database that is migrated."""
    create(editor.connection)


def backwards(apps: Any, editor: Any) -> None:
    """Remove it, with all fences in it."""
    editor.execute("DROP TABLE wheel_lock_fences")


class _Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The first and only one."""

    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(forwards, backwards)]


Migration: type[Any] = _Migration  # the name that Django looks for
