"""``wheel-lock run``: a command that runs while a lock is held.

The command is a process group of its own. It is signalled before the lease ends, and the lock is released only when the
command has ended.
"""
