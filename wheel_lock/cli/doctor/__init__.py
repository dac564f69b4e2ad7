"""``wheel-lock doctor``: what endangers locks on a server, and what to do about it.

``findings`` says what a finding is, and what a refused command means; ``settings`` reads what the server reports of itself,
``distances`` measures clocks and round trips, ``rights`` uses each kind of lock once,
``neighbours`` checks the keys that exist.
"""
