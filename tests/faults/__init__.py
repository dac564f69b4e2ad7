"""Faults that the library survives, injected for real: stopped and forked processes, real servers, a failing network."""
