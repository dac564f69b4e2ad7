"""The wheel and its time scale: no clock, no thread, no sleep."""
