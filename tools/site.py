"""`python -m tools.site site`: check the built documentation, as far as mkdocs does not.

Every public name has its place in the reference, search knows the names, formulas are MathML, and no page
loads anything from the network.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .public import public_names

# what a browser loads by itself, in contrast to links that a reader follows
LOADED = re.compile(
    r"""<(?:script|img|source|iframe)[^>]*?\ssrc=["']?(https?:)?//|<link[^>]*?href=["']?(https?:)?//"""
)
UNRENDERED = re.compile(r"class=.?arithmatex")
SEARCHED = ("FlarePipeline", "calibrate", "Denoiser", "cosine")


def problems(site: Path) -> Iterator[str]:
    """What is wrong with a built site, one line each."""
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").rglob("*.html"))
    anchors = set(re.findall(r'\sid="([\w.]+)"', reference))
    headings = set(re.findall(r"<h\d[^>]*>(?:<code>)?(flare[\w.]*)", reference))
    for name in public_names():
        if not {name.path} & (anchors | headings):
            yield f"{name.path} is not in the reference"
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for word in SEARCHED:
        if not any(entry["location"].startswith("reference/") and word in entry["title"] for entry in index):
            yield f"search finds no entry of the reference for {word}"
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        if LOADED.search(text):
            yield f"{page.relative_to(site)} loads something from the network"
        if UNRENDERED.search(text):
            yield f"{page.relative_to(site)} has a formula that is not rendered"


def main() -> None:
    """Print the problems; exit with 1 if there are any."""
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "The documentation is complete.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
