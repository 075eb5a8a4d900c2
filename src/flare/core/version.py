"""Forwards to `core` until all rooms import from there; tools/base_imports.py removes it."""

from . import __version__ as __version__
