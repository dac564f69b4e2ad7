"""The commands ``ls``, ``inspect``, ``watch`` and ``release``: the locks of a server, seen from a terminal."""
