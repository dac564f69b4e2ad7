"""The tests. A package, so that no `tests` directory of another distribution can stand in for it."""
