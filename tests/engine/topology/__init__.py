"""What follows a server that is no longer the master."""
