"""Where a lease's node is: one server, the master that Sentinels name, or the node of a cluster's slot.

What asks Sentinels and cluster nodes, and parses their replies, is in :mod:`wheel_lock.net`.
"""
