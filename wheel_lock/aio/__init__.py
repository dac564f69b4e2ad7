"""The lock objects and contexts for asyncio: a call awaits the timer's thread, and may be cancelled.

What locks do is in :mod:`wheel_lock.locks`. Programs import the public names from :mod:`wheel_lock.asyncio`.
"""
