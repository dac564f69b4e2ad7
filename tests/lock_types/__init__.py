"""Each lock type at the server: its scripts, their expiries, and models of it in any sequence of calls."""
