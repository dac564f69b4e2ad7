"""The house keeps its shape: imports go down only, the pure rooms stay pure, one door leads to redis-py.

The checker reads syntax trees, so nothing is imported, and a file that does not exist yet breaks nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "wheel_lock"
ROOT = Path(__file__).parent.parent / PACKAGE
MAX_LINES = 600

# Lowest first. A module may import from its own row and from those above it here.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "options", "holder", "wheel", "valkey_clients", "exclusion"),
    ("protocol", "observe", "lease", "rows", "block"),
    ("runtime", "forks"),
    ("net", "lock_types"),
    ("keeper",),
    ("engine",),
    ("diagnostics",),
    ("locks",),
    ("sync", "aio", "guards"),
    ("decorator", "asyncio"),
    ("quorum",),
    ("context",),
    ("redis_lock",),
    ("__init__",),  # imports what it likes; importing from the package itself is for those above it
    ("embedded",),
    ("testing",),
    ("pytest_plugin",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}

# The same within the engine, where a module may import from those above it here, and from its own package.
ENGINE_LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__", "future", "pacing"),
    ("state", "interfaces", "loss_events"),
    ("leases",),
    ("requests",),
    ("renewal", "waiting"),
    ("topology", "direct"),
    ("engine",),
)
ENGINE_LEVEL = {name: level for level, row in enumerate(ENGINE_LAYERS) for name in row}

PURE = ("wheel", "lease", "rows", "block", "protocol", "lock_types")
IMPURE_MODULES = ("threading", "asyncio", "socket", "time", "selectors", "redis", "logging")
MAY_IMPORT_REDIS = (
    *(f"net/{name}.py" for name in ("capabilities", "clients", "cluster", "connector", "handshake", "sentinel")),
    *("context.py", "quorum/node.py", "embedded.py", "testing.py"),
    "valkey_clients.py",
)
FORBIDDEN_NAMES = ("utils", "helpers")


class Import(NamedTuple):
    """One imported module, absolute. Of `from a import b`, name is "a.b", whether b is a module or not."""

    name: str
    line: int
    typing_only: bool


def room(path: Path) -> str:
    """The module or package right under wheel_lock that a file, relative to the package, belongs to."""
    return path.parts[0].removesuffix(".py")


def imports(source: str, path: Path) -> Iterator[Import]:
    yield from _imports(ast.parse(source), (PACKAGE, *path.parent.parts), typing_only=False)


def _imports(tree: ast.AST, package: tuple[str, ...], *, typing_only: bool) -> Iterator[Import]:
    if isinstance(tree, ast.Import):
        for alias in tree.names:
            yield Import(alias.name, tree.lineno, typing_only)
    elif isinstance(tree, ast.ImportFrom):
        base = package[: len(package) - tree.level + 1] if tree.level else ()
        module = ".".join([*base, *([tree.module] if tree.module else [])])
        for alias in tree.names:
            yield Import(f"{module}.{alias.name}", tree.lineno, typing_only)
    elif isinstance(tree, ast.If) and ast.unparse(tree.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for statement in tree.body:
            yield from _imports(statement, package, typing_only=True)
        for statement in tree.orelse:
            yield from _imports(statement, package, typing_only=typing_only)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _imports(child, package, typing_only=typing_only)


def violations(path: Path, text: str) -> list[str]:
    """What a file, given by its path relative to the package, breaks. Each says file, line and rule."""
    found = [*_name_violations(path), *_size_violations(path, text)]
    if path.suffix == ".py":
        for imported in imports(text, path):
            where = f"{PACKAGE}/{path}:{imported.line}"
            found += [f"{where}: {what}" for what in _import_violations(path, imported)]
        if room(path) not in LEVEL:
            found.append(f"{PACKAGE}/{path}:1: rule layers: {room(path)!r} has no place in LAYERS")
    return list(dict.fromkeys(found))  # `from x import a, b` breaks a rule once


def _name_violations(path: Path) -> Iterator[str]:
    for part in path.parts:
        name = part.partition(".")[0].lower()
        if name in FORBIDDEN_NAMES or "manager" in name:
            yield f"{PACKAGE}/{path}:1: rule names: {name!r} does not say what lives there"


def _size_violations(path: Path, text: str) -> Iterator[str]:
    if (lines := len(text.splitlines())) > MAX_LINES:
        yield f"{PACKAGE}/{path}:{MAX_LINES + 1}: rule size: {lines} lines, at most {MAX_LINES} are allowed"


def _import_violations(path: Path, imported: Import) -> Iterator[str]:
    top, _, rest = imported.name.partition(".")
    here = room(path)
    if here in PURE and top in IMPURE_MODULES:
        yield f"rule purity: {here} is pure and must not import {top}"
    if top == "redis" and not imported.typing_only and not _may_import_redis(path, imported):
        yield f"rule redis: only {', '.join(MAY_IMPORT_REDIS)} may import redis (errors.py: redis.exceptions)"
    if top == PACKAGE and path != Path("__init__.py"):
        target, is_module, _ = rest.partition(".")
        if target not in LEVEL and not is_module:  # the package itself, or a name that it offers
            target = "__init__"
        # A module without a place is reported once, where it stands, and not by each of its importers.
        if target in LEVEL and here in LEVEL and LEVEL[target] > LEVEL[here]:
            yield f"rule layers: {here} must not import {target}, which is above it"
        if here == target == "engine":
            inner, other = room(path.relative_to("engine")), rest.split(".")[1] if is_module else "__init__"
            if ENGINE_LEVEL.get(other, 0) > ENGINE_LEVEL.get(inner, -1):
                yield f"rule layers: engine/{inner} must not import engine/{other}, which is above it"


def _may_import_redis(path: Path, imported: Import) -> bool:
    if path == Path("errors.py"):
        return imported.name.startswith("redis.exceptions")
    return path.as_posix() in MAY_IMPORT_REDIS or room(path) in ("redis_lock", "cli")


def package_files() -> list[Path]:
    kept = (".py", ".lua", ".typed")
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and path.suffix in kept)


def test_the_package_keeps_its_shape() -> None:
    found = [what for path in package_files() for what in violations(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


def module_of(path: Path) -> str:
    parts = (PACKAGE, *path.parent.parts, *([] if path.stem == "__init__" else [path.stem]))
    return ".".join(parts)


def test_no_imports_form_a_circle() -> None:
    """Imports for type checking count, too."""
    files = [path for path in package_files() if path.suffix == ".py"]
    modules = {module_of(path) for path in files}
    graph: dict[str, set[str]] = {}
    for path in files:
        names = {imported.name for imported in imports((ROOT / path).read_text("utf-8"), path)}
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module_of(path)] = (found & modules) - {module_of(path)}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


# What a failure costs: see wheel_lock/runtime/failures.py
POSITION_OF_DOMAIN = {"post": 2, "call_at": 3, "watch": 4}


def calls_without_domain(source: str) -> Iterator[str]:
    """Calls that the timer's thread is to make for the engine, of which it is not said what a failure costs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_timer = ast.unparse(node.func.value).endswith("timer")
            needed = POSITION_OF_DOMAIN.get(node.func.attr, 0) if of_timer else 0
            if len(node.args) < needed and not any(keyword.arg == "domain" for keyword in node.keywords):
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_whatever_is_called_for_the_engine_has_a_failure_domain() -> None:
    files = [path for path in package_files() if room(path) in ("net", "engine", "quorum") and path.suffix == ".py"]
    found = [f"{path}:{what}" for path in files for what in calls_without_domain((ROOT / path).read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)
    assert list(calls_without_domain("self._timer.post(work)\ntimer.call_at(when, act, self)")) == [
        "1: self._timer.post(work)"
    ]


# The checker itself


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        # imports go down only
        ("lease.py", "import wheel_lock.engine", ["1: rule layers"]),
        ("lease.py", "\n\nfrom wheel_lock import engine", ["3: rule layers"]),
        ("lease.py", "from . import engine", ["1: rule layers"]),
        ("lease.py", "from .engine.leases import LeaseTable", ["1: rule layers"]),
        ("net/connection.py", "from ..locks.base import BaseLock", ["1: rule layers"]),
        ("engine/__init__.py", "from ..locks import base", ["1: rule layers"]),
        ("wheel/wheel.py", "def f():\n    from wheel_lock import lease", ["2: rule layers"]),
        ("context.py", "import wheel_lock.cli, wheel_lock.testing", ["1: rule layers", "1: rule layers"]),
        ("context.py", "from wheel_lock import LockContext", ["1: rule layers"]),
        ("lease.py", "if TYPE_CHECKING:\n    from .context import LockContext", ["2: rule layers"]),
        ("engine/leases.py", "from .requests.base import Request", ["1: rule layers"]),
        ("context.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import wheel_lock.cli", ["4: rule layers"]),
        ("lease.py", "from .engine import a, b, c", ["1: rule layers"]),
        ("extras.py", "", ["1: rule layers"]),
        # pure rooms, at type-checking time too
        ("wheel/wheel.py", "import time", ["1: rule purity"]),
        ("protocol/resp.py", "import asyncio as aio, socket", ["1: rule purity", "1: rule purity"]),
        ("protocol/resp.py", "if TYPE_CHECKING:\n    import selectors", ["2: rule purity"]),
        # the door to redis-py
        ("net/connection.py", "from redis.exceptions import RedisError", ["1: rule redis"]),
        ("errors.py", "from redis import Redis", ["1: rule redis"]),
        ("lease.py", "import redis", ["1: rule purity", "1: rule redis"]),
        # names
        ("utils.py", "", ["1: rule names", "1: rule layers"]),
        ("engine/helpers.py", "", ["1: rule names"]),
        ("engine/managers/pool.py", "", ["1: rule names"]),
        # size
        ("lease.py", "\n" * 601, ["601: rule size"]),
        ("protocol/lua/renew.lua", "-- x\n" * 601, ["601: rule size"]),
        # what it lets pass
        ("__init__.py", "from wheel_lock.context import LockContext\nfrom .cli import main", []),
        ("net/connection.py", "from . import renewal\nfrom .renewal import Batch\nimport socket, time", []),
        ("net/connection.py", "from wheel_lock import errors\nfrom ..lease import Lease", []),
        ("decorator.py", "from wheel_lock.asyncio import Face\nimport threading", []),
        ("protocol/__init__.py", "from .resp import encode\nfrom ..lease import Lease", []),
        ("lease.py", "import timeit\nimport redisson", []),
        ("net/connection.py", "if TYPE_CHECKING:\n    import redis", []),
        ("net/connector.py", "import redis\nfrom redis.cluster import RedisCluster", []),
        ("errors.py", "from redis.exceptions import LockError\nimport redis.exceptions", []),
        ("lease.py", "\n" * 600, []),
    ],
)
def test_the_checker_sees(path: str, source: str, expected: list[str]) -> None:
    found = violations(Path(path), source)
    assert [what.split(": ", 1)[0] for what in found] == [f"{PACKAGE}/{path}:{want.split(':')[0]}" for want in expected]
    assert [what.split(": ", 2)[1] for what in found] == [want.split(": ")[1] for want in expected]
