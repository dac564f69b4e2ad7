"""What tests stand on: real servers, a network that can fail, waiting. Nothing here imports wheel_lock."""
