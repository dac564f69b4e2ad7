"""Lock objects and contexts without their waiting: what threads and tasks have in common.

What blocks a thread is in :mod:`wheel_lock.sync`, what awaits in :mod:`wheel_lock.aio`; neither is imported here.
"""
