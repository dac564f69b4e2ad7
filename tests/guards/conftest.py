"""Fixtures of guards: the database servers of the session, and a clean table on one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guards.databases import MariaDbServer, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server
