"""The leases of one context, kept on the timer's thread: requests, renewals, waiters and topologies.

No asyncio, no blocking call, and nothing of a particular lock type: those are data from :mod:`wheel_lock.lock_types`.
"""
