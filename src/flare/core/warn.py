"""Forwards to `core.progress` until all rooms import from there; tools/base_imports.py removes it."""

from .progress import warn as warn
