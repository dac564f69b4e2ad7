"""The states of a lease."""
