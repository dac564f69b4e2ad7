"""Renewals: one renewer for each node turns due leases into batches, and retries overdue ones until they are lost.

The operations of callers live in :mod:`wheel_lock.engine.requests`.

* **A lease is in one place**: on the wheel, in one unanswered call, or among the overdue leases. So it is neither
  renewed twice at once nor forgotten.
* **Silence proves nothing.** A call that is silent for a sixth of the timeout makes the connection suspected: nothing
  more is sent there, a second connection is tried, and the one that answers first is used. A paused server loses
  nothing in flight; a vanished one is left as soon as another connection stands. Overdue leases then go out, nearest
  deadline first.
* **A refusal concerns what was refused.** The server's state (BUSY, LOADING, READONLY) is probed by one call at a time,
  about a lock type that was not refused if there is one: a right may be missing for one type only. An entry that is
  refused alone waits alone; so does a call in single-key mode, because behind a proxy it says nothing of other servers.
* **Early renewals join others when those are due.** A grid of ticks would be simpler, but leases of different intervals
  would never meet on it. At most four batches join a tick, because callers wait behind them.
* **A check is an early renewal**, not a read: its reply moves states and deadlines by the rules of every renewal. A
  lease that must not be renewed now (at its limit, or extended) is looked up by a query instead.
"""
