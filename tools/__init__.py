"""Commands for contributors, run from the root of the repository: `python -m tools.map`."""
