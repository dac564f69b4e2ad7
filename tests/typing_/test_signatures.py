"""The methods that make locks write out their parameters: editors, `help()` and the reference show them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from wheel_lock import LockContext, QuorumContext
from wheel_lock.aio.context import AsyncContext
from wheel_lock.options import TERMS
from wheel_lock.quorum.context import AsyncQuorumContext

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
        assert theirs - mine <= {"cancel_on_lost"}
        assert mine <= theirs
