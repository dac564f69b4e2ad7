"""The simulation: the real code on one clock, with one seed. See CONTRIBUTING.md."""
