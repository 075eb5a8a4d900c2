"""One loader under atheris: libFuzzer changes bytes and keeps what reaches new lines of FLARE.

Run by `fuzz.run` if atheris is installed: python -m fuzz.guided KIND SUFFIX HOME, and options of libFuzzer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.dont_write_bytecode = True
with atheris.instrument_imports(include=["flare"]):
    from . import targets

KIND, SUFFIX, HOME = sys.argv[1], sys.argv[2], Path(sys.argv[3])
PATH = HOME / f"guided{SUFFIX}"


def one(data: bytes) -> None:
    """Read one input; a `Finding` ends the run with its bytes in a file."""
    PATH.write_bytes(data)
    targets.held(lambda: targets.FILES[KIND](PATH))


if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[4:]], one)
    atheris.Fuzz()
