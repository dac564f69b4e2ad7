"""Connections to servers: how one is made, what travels over it, and one node's connection through its outages.

Connectors (redis-py connects and hands its socket over), Sentinel and cluster discovery, the pipelined connection, the
node that owns it, and pub/sub. Nothing here decides anything about a lease: that is the engine's.
"""
