"""Waiting for locks that are held: waiters, the wait queue of each name, fair queues, and the registry of all queues.

What a single try sends is in :mod:`wheel_lock.engine.requests`.

* **The first try is a plain SET**, and so is the try after a wake-up. Only after a refusal does a script ask for the
  holder's remaining time; after a wake-up in vain it does so 0.1 s later, after four of them at once.
* **A wake-up is ignored while this process holds the lock**: the end of that lease is known here first.
* **Each try has a token of its own**, so that the clean-up after one cannot remove the grant of the next. Where the
  server registers waiters, it knows them by the part of the token that stays.
* **A release is quiet** (wakes no waiter) where the SET of the next waiter of this process follows in the same write: what
  it woke elsewhere would find the lock taken. The first and the 16th of such a streak are not quiet. If that SET is not
  sent after all, or fails, or would go elsewhere, the queue owes the wake-up and publishes it. A release that is sent
  again is not quiet, and a repeated one that finds the key gone is followed by a wake-up.
* **An error ends all waits of a queue**: each waiter would get the same, one time limit after the other. What concerns
  one caller (its time limit, a limit of its context, another name that it wants, too) ends that wait only.
* **A queue belongs to a name and a kind of waiter** (``queue_key``): readers do not wait behind writers. Readers and
  permits are granted one after the other, each grant being followed by the next try.
"""
