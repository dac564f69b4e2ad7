"""Lock objects and contexts without their waiting: what threads and tasks have in common.

Options, ownership, reentrancy, read-write pairs, semaphores, bulk acquires and hand-over live here. What blocks a thread
is in :mod:`wheel_lock.sync`, what awaits in :mod:`wheel_lock.aio`; neither is imported here.
"""
