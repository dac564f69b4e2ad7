"""Locks that a majority of independent masters grants (Redlock), built on an engine for each of them."""
