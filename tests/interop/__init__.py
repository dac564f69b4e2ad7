"""The library in the places for which others have made redis-py's Lock, and under redis-py's own tests."""
