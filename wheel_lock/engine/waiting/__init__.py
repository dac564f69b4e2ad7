"""Waiting for locks that are held: waiters, the queue of each name, fair queues, and the registry of all of them.

What a single try sends is in :mod:`wheel_lock.engine.requests`.
"""
