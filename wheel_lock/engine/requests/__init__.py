"""Requests made for callers: how each is sent, retried, timed out and undone. A file for each operation.

Renewals are not requests of callers and live in :mod:`wheel_lock.engine.renewal`; waiting for a lock that is held lives in
:mod:`wheel_lock.engine.waiting`.
"""
