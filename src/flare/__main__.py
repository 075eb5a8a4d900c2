"""`python -m flare`."""

from .cli import main

main()
