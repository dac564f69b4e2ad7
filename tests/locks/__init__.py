"""What lock objects do, on real servers and on the embedded one."""
