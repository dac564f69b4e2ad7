"""The tests. A package, so that no stray `tests` directory of another distribution can stand in for it."""
