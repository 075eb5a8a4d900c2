"""The experiments of the paper and our own studies, on the public API: `python -m experiments.NAME`."""
