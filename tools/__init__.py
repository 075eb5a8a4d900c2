"""What the scripts of this repository share; not part of the installed package."""
