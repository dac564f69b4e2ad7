"""Redlock: locks that a majority of independent masters grants, built on one engine for each master."""
