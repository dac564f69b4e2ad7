"""The result of a bulk acquire is a dict like any other, though its locks are made when they are asked for."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import pytest

from wheel_lock.lease import NO_OWNER, Extras
from wheel_lock.locks.locks_by_name import LocksByName
from wheel_lock.protocol.resp import lease_args
from wheel_lock.rows import Rows

NAMES = ("a", "b", "c", "d")


class Lock:
    """A lock object, as the dict sees it. Equal ones have the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lease: Any = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Lock)
            and (other.name, other._lease.name) == (self.name, self._lease.name) == (self.name,) * 2
        )

    def __hash__(self) -> int:
        return id(self)


class Engine:
    """An engine that notes what it is asked for."""

    def __init__(self) -> None:
        self.posted: list[Any] = []

    def post_if_open(self, call: Any) -> None:
        self.posted.append(call)

    def abandon_all(self, rows: Any) -> None: ...


class Group:
    alive = True
    timeout_s = 3.0


def rows_of(*names: str) -> Rows:
    group: Any = Group()
    rows = Rows(names, b"".join(lease_args(name.encode(), b"t") for name in names), group, NO_OWNER, Extras())
    rows.granted(0.0, 3.0)
    return rows


class Case:
    """A dict of the locks a to d, of two rows, and e, which was not granted; ``made`` has the names of those that exist."""

    def __init__(self) -> None:
        self.engine: Any = Engine()
        self.made: list[str] = []
        self.interrupt: Callable[[], object] = lambda: None
        self.locks: LocksByName[str, Any] = LocksByName(self.engine, self._new_lock)  # type: ignore[arg-type]
        self.locks.put_rows(rows_of("a", "b"))
        self.locks.put_rows(rows_of("c", "d"))
        self.locks.put("e", None)

    def _new_lock(self, name: str) -> Lock:
        self.made.append(name)
        interrupt, self.interrupt = self.interrupt, lambda: None
        interrupt()
        return Lock(name)


@pytest.fixture
def case() -> Case:
    return Case()


def plain() -> dict[str, Any]:
    locks: dict[str, Any] = {name: Lock(name) for name in NAMES}
    for name, lock in locks.items():
        lock._lease = Lock(name)
    return {**locks, "e": None}


ALL, FIRST = [*NAMES], ["a", "b"]


def changed(change: Callable[[Any], object]) -> Callable[[Any], object]:
    def then(locks: Any) -> object:
        change(locks)
        return dict(locks)

    return then


@pytest.mark.parametrize(
    ("made", "ask"),
    [
        ([], len),
        ([], list),
        ([], bool),
        ([], lambda locks: list(reversed(locks))),
        ([], lambda locks: list(locks.keys())),
        ([], lambda locks: ("a" in locks, "x" in locks)),
        ([], lambda locks: (locks["e"], locks.get("e", 5), locks.get("x"), locks.get("x", 5))),
        (FIRST, lambda locks: locks["a"]),
        (FIRST, lambda locks: [locks[name] for name in ("a", "b", "a")]),
        (FIRST, lambda locks: locks.get("b")),
        (FIRST, lambda locks: next(iter(locks.items()))),
        (["c", "d"], lambda locks: locks["d"]),
        (ALL, lambda locks: list(locks.values())),
        (ALL, lambda locks: list(reversed(locks.values()))),
        (ALL, lambda locks: list(locks.items())),
        (ALL, lambda locks: list(reversed(locks.items()))),
        (ALL, dict),
        (ALL, copy),
        (ALL, lambda locks: locks.copy()),
        (ALL, lambda locks: {**locks}),
        (ALL, lambda locks: locks | {"z": 1}),
        (ALL, lambda locks: {"z": 1} | locks),
        (ALL, lambda locks: dict(z=1, **locks)),
        (ALL, lambda locks: locks == plain()),
        (ALL, lambda locks: locks != plain()),
        (ALL, lambda locks: json.dumps(locks, default=lambda lock: lock.name)),
        (ALL, changed(lambda locks: locks.pop("a"))),
        (ALL, changed(lambda locks: locks.popitem())),
        (ALL, changed(lambda locks: locks.setdefault("a", 1))),
        (ALL, changed(lambda locks: locks.setdefault("z", 1))),
        (ALL, changed(lambda locks: locks.update(a=1))),
        (
            ALL,
            changed(lambda locks: (locks.update(a=[]), locks.update(b=[]))),
        ),  # also of what no lock is, and has no hash
        (ALL, changed(lambda locks: locks.__setitem__("a", 1))),
        (ALL, changed(lambda locks: locks.__delitem__("a"))),
        (ALL, changed(lambda locks: locks.__ior__({"a": 1}))),
        (ALL, changed(lambda locks: locks.clear())),
    ],
)
def test_each_question_has_the_answer_of_a_dict(case: Case, made: list[str], ask: Callable[[Any], Any]) -> None:
    assert ask(case.locks) == ask(plain())
    assert sorted(case.made) == made


def test_a_change_looks_at_no_lock_that_is_made(case: Case) -> None:
    """Else the end of very many, each taken out when it is released, would take a time that grows with their square."""
    looked: list[object] = []

    class Noted(Lock):
        def __hash__(self) -> int:
            looked.append(self)
            return 0

    case.locks.put("f", Noted("f"))
    assert [case.locks.popitem()[0] for _ in range(6)] == [*"fedcba"]
    assert not looked


@pytest.mark.parametrize("copied", [copy, deepcopy, lambda locks: pickle.loads(pickle.dumps(locks))])
def test_where_nothing_was_granted_it_is_copied_as_a_dict_is(case: Case, copied: Callable[[Any], Any]) -> None:
    locks = LocksByName[str, Any](case.engine, case.locks._new_lock)
    locks.put("a", None)
    assert copied(locks) == {"a": None}


def test_it_is_shown_as_a_dict(case: Case) -> None:
    shown = repr(case.locks)
    assert shown.startswith("{'a': <")
    assert shown.endswith("'e': None}")


@pytest.mark.parametrize("name", ["x", None])
def test_a_name_that_is_not_there(case: Case, name: Any) -> None:
    with pytest.raises(KeyError):
        case.locks[name]


def test_a_lock_is_made_once_though_somebody_else_asks_while_it_is_made(case: Case) -> None:
    inner: list[Any] = []
    case.interrupt = lambda: inner.append(case.locks["a"])
    outer: Any = case.locks["a"]
    assert outer is inner[0]
    assert outer is case.locks["a"]
    assert outer == plain()["a"]


def test_a_change_in_the_middle_of_a_look_stays(case: Case) -> None:
    case.interrupt = lambda: case.locks.pop("a")
    assert case.locks["b"] == plain()["b"]
    assert "a" not in case.locks


def test_an_interrupted_look_can_be_repeated(case: Case) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    case.interrupt = interrupt
    with pytest.raises(KeyboardInterrupt):
        case.locks["a"]
    assert case.locks == plain()


@pytest.mark.parametrize(("looks", "left"), [("", 2), ("a", 1), ("ac", 0)])
def test_those_that_were_never_made_are_abandoned_in_one_step(case: Case, looks: str, left: int) -> None:
    kept, engine = [case.locks[name] for name in looks], case.engine
    del case.locks
    assert [len(call.args[0]) for call in engine.posted] == ([left] if left else [])
    assert len(kept) == len(looks)
