"""What the one thread does about Redis. See docs/design.md for the road that every command travels."""
