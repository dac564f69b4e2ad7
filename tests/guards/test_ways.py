"""A guard by each library: a later fence passes, an equal one, too, and an earlier one writes nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.guards.ways import WAYS, Way, way
from wheel_lock import NoFenceTable, StaleFence


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


def test_a_missing_table_is_named_and_not_made(data: Way) -> None:
    data.prepare(table=False)
    for _ in range(2):
        with pytest.raises(NoFenceTable, match=r"migration.*guards\.create"):
            data.write(("account:42", 1), 1)
    assert data.written() == []
