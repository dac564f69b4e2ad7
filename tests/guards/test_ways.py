"""A guard by each library: a later fence passes, an equal one, too, and an earlier one writes nothing."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connections

from tests.guards.ways import WAYS, Way, django_alias, way
from tests.support import django_settings
from wheel_lock import NoFenceTable, StaleFence
from wheel_lock.guards import guard
from wheel_lock.guards.django import guarded


@pytest.fixture(params=WAYS, ids=", by ".join)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    found = way(request, tmp_path, *request.param)
    found.prepare()
    return found


NOW = 1_800_000_000_000_000  # fences are about the time in microseconds


def test_what_an_overtaken_holder_writes_is_refused(data: Way) -> None:
    data.write(("account:42", NOW), 1)
    data.write(("account:42", NOW), 2)
    data.write(("account:43", 5), 3)  # another name
    data.write(("account:42", NOW + 1), 4)
    with pytest.raises(StaleFence, match="'account:42' is stale") as raised:
        data.write(("account:42", NOW), 5)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.name, error.fence, error.newer) == ("account:42", NOW, NOW + 1)
    assert error.lock_name == "account:42"
    assert data.written() == [1, 2, 3, 4]
    data.write(("account:42", NOW + 1), 6)
    assert data.written() == [1, 2, 3, 4, 6]


def test_the_migration_of_django_makes_the_table_and_removes_it(tmp_path: Path) -> None:
    from django.core.management import call_command

    alias = django_alias("sqlite", tmp_path / "data.sqlite", None)
    with django_settings.overridden(INSTALLED_APPS=["wheel_lock.guards.django"]), closing(connections[alias]):
        call_command("migrate", database=alias, verbosity=0)
        with guarded(("account:42", 7), alias):
            pass
        with pytest.raises(StaleFence), guarded(("account:42", 6), alias):
            pass
        with pytest.raises(ValueError, match=r"transaction\.atomic"):
            guard(connections[alias], ("account:42", 7))
        call_command("migrate", "wheel_lock_guards", "zero", database=alias, verbosity=0)
        with pytest.raises(NoFenceTable), guarded(("account:42", 7), alias):
            pass


def test_a_missing_table_is_named_and_not_made(data: Way) -> None:
    data.prepare(table=False)
    for _ in range(2):
        with pytest.raises(NoFenceTable, match=r"migration.*guards\.create"):
            data.write(("account:42", 1), 1)
    assert data.written() == []
