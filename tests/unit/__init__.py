"""Everything below the engine, one file of tests for each file of the package."""
