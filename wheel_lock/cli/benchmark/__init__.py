"""``wheel-lock bench``: what it costs to keep locks alive on a server of the user's own."""
