"""Renewals: one renewer for each node turns due leases into batches, and retries overdue ones until they are lost.

The operations of callers live in :mod:`wheel_lock.engine.requests`.
"""
