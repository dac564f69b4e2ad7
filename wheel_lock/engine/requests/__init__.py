"""Requests made for callers: how each is sent, retried, timed out and undone. A file for each operation.

Renewals live in :mod:`wheel_lock.engine.renewal`, the waits for held locks in :mod:`wheel_lock.engine.waiting`.
"""
