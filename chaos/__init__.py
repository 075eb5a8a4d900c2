"""Kills and faults: `make chaos` disturbs commands and compares what they write with undisturbed ones."""
