"""The library beside its targets: the table and the parts of docs/performance.md, and the workers that they are made of."""
