"""The keeper: a process that releases the locks of another one as soon as the kernel proves its death.

``record.py`` is what the other process writes before each command that may give it a lock, ``keeping.py`` its side of the
socket, and ``program.py`` the keeper itself. Imported by contexts with ``release_on_crash`` only.
"""
