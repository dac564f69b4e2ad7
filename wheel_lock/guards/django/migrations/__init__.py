"""The table of guards, as a migration."""
