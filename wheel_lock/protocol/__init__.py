"""The wire: encoding of commands, reading of replies, names of keys, Lua scripts. Pure: no clock, thread or socket."""
