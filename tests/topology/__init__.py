"""Sentinels, replicas and clusters of real servers."""
