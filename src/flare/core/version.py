"""The version of FLARE."""

__version__ = "0.3.0"
