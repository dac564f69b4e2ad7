"""What a type checker says about the library: the lines that matter here are checked by mypy --strict, and then run."""
