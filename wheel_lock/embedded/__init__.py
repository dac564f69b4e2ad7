"""fakeredis as a server for tests and demos: who is let in (admission.py), what clients may do (sandbox.py), the server.

Only `wheel_lock.testing` imports it. Without the extra ``demo`` there is no fakeredis, so nothing else of the library may.
"""
