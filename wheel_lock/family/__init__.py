"""The lock objects beyond the plain one, for threads and for asyncio: what differs from it, and nothing else."""
