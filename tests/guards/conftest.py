"""Fixtures of guards: the database servers of the session, and a clean table on one of them."""

from __future__ import annotations

from tests.guards.databases import MariaDbServer, PostgresServer
from tests.support.fixtures import fixture_of

postgres_server = fixture_of(PostgresServer, "session")


mariadb_server = fixture_of(MariaDbServer, "session")
