"""A hook of mkdocs: formulas become MathML when the pages are built, and need no script and no network."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# what pymdownx.arithmatex makes of $...$ and $$...$$
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Convert the formulas of a page."""
    content = DISPLAY.sub(lambda found: convert(html.unescape(found[1].strip()), display="block"), content)
    return INLINE.sub(lambda found: convert(html.unescape(found[1].strip())), content)
