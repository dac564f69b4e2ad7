"""The one thread: clock, loop, timer, notifier threads."""
