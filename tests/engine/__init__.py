"""The engine by itself: one thread, a clock that is moved by hand, and a server that says what the test lets it say."""
