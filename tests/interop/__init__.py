"""The library in the places for which others have made redis-py's Lock, under redis-py's own tests, and beside Redisson."""
