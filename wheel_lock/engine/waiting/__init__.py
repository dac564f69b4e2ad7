"""Waiting for locks that are held: waiters, the wait queue of each name, fair queues, and the registry of all queues.

What a single try sends is in :mod:`wheel_lock.engine.requests`.
"""
