"""Connections and nodes, without a server."""
