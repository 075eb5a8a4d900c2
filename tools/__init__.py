"""Commands and helpers for contributors, run from the root of the repository; not installed."""
