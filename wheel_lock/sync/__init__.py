"""The lock objects and contexts for threads: how a call blocks until the timer's thread has answered.

The rules of the locks themselves are in :mod:`wheel_lock.locks`. Nothing here knows of asyncio.
"""
