"""The embedded server is for the user who has started it, and runs Redis commands for him, not Python."""
