"""fakeredis as a server for tests and demos: the check of the password (admission.py), the sandbox of scripts, the server.

Only `wheel_lock.testing` imports it: fakeredis is installed with the extra ``demo`` only.
"""
