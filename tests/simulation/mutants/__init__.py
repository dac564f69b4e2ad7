"""Mistakes that the simulation must find: some by hand, most by operators."""
