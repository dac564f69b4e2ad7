"""The one thread: its clock, loop and timer, what ends its sleep, and the notifier threads that run users' code.

Also what that thread rests on: native threads and sockets beside gevent's, failure domains, alarms, backoff and weak
registries. Knows nothing of Redis, of leases or of locks (an owner of a lease is all that greenlets need of them).
"""
