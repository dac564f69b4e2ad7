"""Bytes and values on the wire. Pure: nothing here knows of a clock, a thread or a socket."""
