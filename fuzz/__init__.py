"""Malformed files and arguments: `make fuzz` feeds them to every loader and to the command line."""
