"""The version of FLARE."""

__version__ = "0.4.0"
