"""The program that users' type checkers are tried on has every public name."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wheel_lock
from wheel_lock import LockContext, LossReason, QuorumContext
from wheel_lock.aio.context import AsyncContext
from wheel_lock.options import SETTINGS, TERMS
from wheel_lock.quorum.context import AsyncQuorumContext, QuorumSettings

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


# The methods that make locks write out their parameters: editors, `help()` and the reference show them


LACKING = {  # parameters of a lock that a kind does not have
    "lock": set(),
    "fair_lock": set(),
    "locked": set(),
    "reentrant_lock": {"thread_local"},
    "rw_lock": {"thread_local"},
    "semaphore": {"fencing"},
    "multi_lock": {"fencing"},
}
CONTEXTS: list[Any] = [LockContext, AsyncContext, QuorumContext, AsyncQuorumContext]
FACTORIES = [(owner, name) for owner in CONTEXTS for name in LACKING if inspect.isfunction(getattr(owner, name, None))]


@pytest.mark.parametrize(("owner", "name"), FACTORIES, ids=[f"{owner.__name__}-{name}" for owner, name in FACTORIES])
def test_a_factory_has_each_parameter_of_its_kind_with_the_default_of_the_kind(owner: Any, name: str) -> None:
    parameters = inspect.signature(getattr(owner, name)).parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    terms = {term: parameters[term].default for term in parameters if term in TERMS}
    assert terms == {term: default for term, default in TERMS.items() if term not in {"fallback", *LACKING[name]}}
    assert parameters["timeout"].default is None
    assert parameters["on_lost"].default is None


def test_factories_of_both_apis_have_the_same_parameters() -> None:
    for name in LACKING.keys() - {"locked"}:
        mine, theirs = (
            set(inspect.signature(getattr(owner, name)).parameters) for owner in (LockContext, AsyncContext)
        )
        assert theirs - {"cancel_on_lost"} == mine


@pytest.mark.parametrize(("owner", "name"), FACTORIES, ids=[f"{owner.__name__}-{name}" for owner, name in FACTORIES])
def test_a_factory_refuses_what_its_kind_does_not_have(owner: Any, name: str) -> None:
    for keyword in {"on_loss", "fallback", *LACKING[name]}:
        with pytest.raises(TypeError, match=f"{name}\\(\\) got an unexpected keyword argument '{keyword}'"):
            getattr(owner, name)(object(), "order:42", timeout=30.0, **{keyword: None})


@pytest.mark.parametrize("method", [LockContext.__init__, LockContext.lock, AsyncContext.lock])
def test_what_programs_call_most_is_written_out_for_editors_that_read_only_the_source(method: Any) -> None:
    assert inspect.getfullargspec(inspect.unwrap(method)).varkw is None


def test_each_setting_has_one_default_and_is_documented() -> None:
    defaults = {name: setting.default for name, setting in inspect.signature(LockContext).parameters.items()}
    others = {
        "max_calls_in_flight",
        "backoff_first",
        "backoff_max",
        *(QuorumSettings.__annotations__.keys() - defaults.keys()),
    }
    assert {
        **{name: SETTINGS[name] for name in others},
        **{name: default for name, default in defaults.items() if name != "client"},
    } == {**SETTINGS, "timer": None}
    assert [name for name in defaults if f"\n    {name}: " not in inspect.cleandoc(LockContext.__doc__ or "")] == []


def test_the_settings_of_a_quorum_are_those_of_a_context_and_its_own() -> None:
    one, many = ({**inspect.signature(context).parameters} for context in (LockContext, QuorumContext))
    assert many.keys() - one.keys() == {"clients", "node_timeout", "longest_timeout", "trust_new_nodes"}
    assert one.keys() - many.keys() == {"client", "fallback_interval", "min_replicas", "replica_timeout"}
    assert all(many[name].default == one[name].default for name in many.keys() & one.keys())
    assert QuorumSettings.__annotations__.keys() == many.keys() - {"clients"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_replicas'"):
        LockContext.quorum([], min_replicas=1)  # type: ignore[call-arg]
