"""Locks that a majority of five real masters grants."""
