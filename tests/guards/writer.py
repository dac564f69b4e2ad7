"""A holder that writes under a lock, and is stopped at the worst moments: `main` is called in a child of a fork server.

It writes to a register of one row, which counts the writes that came after one with a larger fence. Every few transactions
it says where it is, and stops itself; the test, as a third holder, is granted the lock, and goes on with it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import redis

from wheel_lock import LockContext, LockLost, StaleFence
from wheel_lock.guards import fence_of, guard

NAME = "account:42"
STOPPING = "stopping"
"""The key of the one process that may stop at a time."""
EVERY = 30
"""Transactions between two stops of a process."""
PLACES = ("before the transaction", "after the guard", "before the commit")
WRITE = "UPDATE register SET late = late + (CASE WHEN fence > {0} THEN 1 ELSE 0 END), fence = {0}, writes = writes + 1"
FAILURES = (psycopg.OperationalError, pymysql.err.OperationalError, sqlite3.OperationalError)


def connect(kind: str, address: Any) -> Any:
    if kind == "sqlite":
        return sqlite3.connect(address, timeout=60.0)
    if kind == "mariadb":
        return pymysql.connect(**address, database="test")
    connection = psycopg.connect(**address)
    if kind == "postgresql, serializable":
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    return connection


def main(settings: str, output: str) -> None:
    chosen = json.loads(settings)
    connection = connect(chosen["kind"], chosen["address"])
    client = redis.Redis.from_url(chosen["url"])
    logging.disable(logging.WARNING)  # of lost locks
    done = refused = 0
    stopped_at = -1

    def stop(place: int) -> None:
        """Stop here, if it is the turn of this place, once."""
        nonlocal stopped_at
        its_turn = done % EVERY == EVERY - 1 and done // EVERY % len(PLACES) == place and done != stopped_at
        if its_turn and client.set(STOPPING, done, nx=True):
            stopped_at = done
            os.write(int(output), json.dumps({"place": PLACES[place], "pid": os.getpid()}).encode() + b"\n")
            os.kill(os.getpid(), signal.SIGSTOP)

    with LockContext(client) as context:
        while done < chosen["transactions"]:
            lock = context.lock(NAME, fencing=True, retry_every=0.01)  # a deletion wakes no waiter
            lock.acquire()
            held = fence_of(lock)  # so that the guard alone decides
            client.delete(NAME)  # the other one is a holder, too, from now on
            try:
                for _ in range(5):
                    stop(0)
                    if chosen["guarded"]:
                        guard(connection, held)
                    stop(1)
                    connection.cursor().execute(WRITE.format(held.fence))
                    stop(2)
                    connection.commit()
                    done += 1
            except StaleFence:
                refused += 1
                connection.rollback()
            except FAILURES:
                connection.rollback()
            with suppress(LockLost):
                lock.release()
    connection.close()
    os.write(int(output), json.dumps({"done": done, "refused": refused}).encode() + b"\n")
