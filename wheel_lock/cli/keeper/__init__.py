"""``wheel-lock keeper``: the keeper of a host, or of a pod."""
