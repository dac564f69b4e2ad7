"""redis-py's own interface: its Lock and asyncio Lock, renewed."""
