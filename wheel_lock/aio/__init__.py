"""The lock objects and contexts for asyncio: how a call awaits the timer's thread, and what a cancellation does.

The rules of the locks themselves are in :mod:`wheel_lock.locks`. Programs import :mod:`wheel_lock.asyncio`, which offers
the public names of this package.
"""
