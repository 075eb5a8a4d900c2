"""`make test-pythons`: install FLARE for each supported Python found here, and try it.

Each interpreter gets its own environment (`.venv-3.10` and so on) with the package as a user installs it. A
missing interpreter is named and skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.installed import ROOT, install, run, smoke

VERSIONS = ("3.10", "3.12", "3.13")  # `make test` runs 3.11
TESTS = ["tests/diffusion", "tests/posteriors", "tests/sampling/test_sample.py"]


def find(version: str) -> str | None:
    """The path of an interpreter: the one on the PATH, or the newest that pyenv has."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    patches = pyenv.glob(f"{version}.*/bin/python")
    candidates += sorted(map(str, patches), key=lambda path: [int(n) for n in re.findall(r"\d+", path)])[::-1]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        # pyenv puts shims on the PATH that fail if their interpreter is not selected
        if candidate and _output([candidate, "-c", code]) == version:
            return candidate
    return None


def main() -> None:
    """Try each version; exit with an error if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"default: {' '.join(VERSIONS)}")
    failed = []
    for version in parser.parse_args().versions:
        python = find(version)
        if python is None:
            print(
                f"Python {version}: not found, skipped. Install it with: pyenv install {version}", flush=True
            )
            continue
        print(f"Python {version}: {python}", flush=True)
        home = ROOT / f".venv-{version}"
        try:
            shutil.rmtree(ROOT / "build", ignore_errors=True)  # or files of an earlier build are installed
            install(python, home, f"{ROOT}[test,diffusers]")
            smoke(home)
            run([home / "bin" / "python", "-m", "pytest", *TESTS])
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"Python {version}: FAILED: {error}", flush=True)
            failed.append(version)
        else:
            print(f"Python {version}: passed", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
