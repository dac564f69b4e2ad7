"""The program that users' type checkers are tried on has every public name."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import wheel_lock
from wheel_lock import LossReason

PROGRAM = Path(__file__).parent / "public_calls.py"
# Public in name only: of redis-py's classes, of enumerations and exceptions of Python, and what only the library calls.
INHERITED = (Exception, LossReason, wheel_lock.redis_lock.Lock, wheel_lock.redis_lock.AsyncLock)
INTERNAL = {
    "HashedWheelTimer": set(dir(wheel_lock.HashedWheelTimer)) - {"new_timeout", "pending", "stop", "shared"},
    "Timeout": {"due_at", "group", "state", "tick"},
    "ManualClock": {"attach", "sleep_s"},
    "Lock": {"in_bulk"},
    "tuple": {"count", "index"},
}


def public(module: ModuleType, names: list[str]) -> Iterator[tuple[str, str]]:
    """The public names of a module, and those of its classes, as pairs of a name and of the class or module it is in."""
    for name in names:
        yield name, module.__name__
        thing = getattr(module, name)
        if inspect.isclass(thing) and not issubclass(thing, INHERITED):
            for member in dir(thing):
                if not member.startswith("_") and not any(
                    member in INTERNAL.get(base.__name__, ()) for base in thing.__mro__
                ):
                    yield member, name


def test_every_public_name_is_used() -> None:
    used = {node.attr for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Name)}
    testing = ["EmbeddedServer", "FakeContext", "ManualClock", "fake_context"]
    modules = [(module, list(module.__all__)) for module in (wheel_lock, wheel_lock.asyncio, wheel_lock.redis_lock)]
    modules += [(module, list(module.__all__)) for module in (wheel_lock.guards, wheel_lock.guards.asyncio)]
    modules += [(module, list(module.__all__)) for module in (wheel_lock.guards.redis, wheel_lock.guards.http)]
    modules += [(wheel_lock.observe, list(wheel_lock.observe.__all__)), (wheel_lock.testing, testing)]
    missing = {f"{where}: {name}" for pair in modules for name, where in public(*pair) if name not in used}
    assert missing == set()


def test_modules_of_the_package_are_there_without_an_import_of_their_own() -> None:
    assert {"asyncio", "guards", "observe", "redis_lock", "testing", "LockContext"} <= set(dir(wheel_lock))
    assert wheel_lock.testing.fake_context is getattr(wheel_lock.testing, "fake_context")  # noqa: B009
    assert not hasattr(wheel_lock, "no_such_module")
