"""Requests made for callers: how each is sent, retried, timed out and undone. A file for each kind of operation.

Renewals live in :mod:`wheel_lock.engine.renewal`, the waits for held locks in :mod:`wheel_lock.engine.waiting`.

* **What a caller does not get is given back.** A grant that comes too late, or may have come (an interruption, a time
  limit, an error of a script, which may come from half-way through it), is followed by an owner-checked release on the
  same connection, which is tried again until the key has expired.
* **"Gone" is a success for a repeated release**, because the first one did it, and a loss for a first one.
* **Nothing is sent for a released lease.** A call that is repeated is about the leases that are still held.
* **Work on many leases is cut into turns**, so that replies and due renewals come in between. A caller sends one
  message for all of it, so an interruption leaves no part behind. A turn is longer only where a server, the timer or
  the thread ends with all that it has.
* **Limits are checked before anything changes.** An extension beyond ``MAX_SECONDS`` is refused here if the remaining
  time proves it, else by its script. A key to which another client has given more is renewed and adopted like any
  other.
"""
