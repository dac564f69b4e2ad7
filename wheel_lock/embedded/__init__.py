"""fakeredis as a server for tests and demos: authentication (admission.py), the sandbox of scripts, the server.

Only `wheel_lock.testing` imports this package, because fakeredis is installed only with the extra ``demo``.
"""
