"""Clients of valkey-py in place of redis-py's."""
