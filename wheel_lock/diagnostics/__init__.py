"""Views of a running context above the engine: its state as text and as values, the debug socket, spans of lock objects.

What the engine itself notes (counters, events) is in ``wheel_lock.observe``.
"""
