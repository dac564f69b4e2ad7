"""Bytes: encoding, replies, error replies, keys, tokens, scripts."""
