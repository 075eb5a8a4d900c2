"""Rewrite the imports of three merged modules of `core`, and remove the modules; run once, after all merges.

core.defaults and core.version are now core itself; core.warn is core.progress.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOVED = [
    (r"\bcore\.(defaults|version) import", "core import"),
    (r"\bflare\.core\.(defaults|version)\b", "flare.core"),
    (r"\bcore\.warn import", "core.progress import"),
    (r"\bfrom \.warn import", "from .progress import"),
    (r"\bflare\.core\.warn\b", "flare.core.progress"),
]

if __name__ == "__main__":
    for name in ("defaults", "version", "warn"):
        (ROOT / "src/flare/core" / f"{name}.py").unlink(missing_ok=True)
    listed = subprocess.run(["git", "ls-files", "*.py", "*.toml"], cwd=ROOT, capture_output=True, text=True)
    for path in map(ROOT.joinpath, listed.stdout.split()):
        if path.is_file() and path != Path(__file__):
            before = after = path.read_text(encoding="utf-8")
            for old, new in MOVED:
                after = re.sub(old, new, after)
            if after != before:
                path.write_text(after, encoding="utf-8")
    subprocess.run(["ruff", "check", "--select", "I", "--fix", "-q", "."], cwd=ROOT, check=False)
