"""``wheel-lock top``: a view of what a running process holds, read from the socket that ``context.serve_debug()`` opens."""
