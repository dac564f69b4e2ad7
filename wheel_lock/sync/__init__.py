"""The lock objects and contexts for threads: a call blocks until the timer's thread has answered.

What locks do is in :mod:`wheel_lock.locks`. Nothing here imports asyncio.
"""
