"""Waiters, wait queues, wake-ups."""
