"""What follows a server that is not the master any more."""
