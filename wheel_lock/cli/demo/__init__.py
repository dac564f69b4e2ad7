"""``wheel-lock demo`` and ``wheel-lock hold``: many locks that are held for a while, with and without a picture."""
