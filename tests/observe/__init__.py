"""Counters and snapshots."""
