"""A hook of mkdocs: formulas become MathML when the pages are built, and need no script and no network.

Browsers lay MathML out with a font that has a table for mathematics, which many systems lack. The site
brings one along: STIX Two Math, from the package ziamath, cut down to the characters of the formulas.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

FONT = "assets/math.woff"  # as docs/assets/site.css names it
# what pymdownx.arithmatex makes of $...$ and $$...$$
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
MATH = re.compile(r"<math.*?</math>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
ITALIC = 0x1D434  # 𝐴; a browser draws a lone letter with these
GREEK_ITALIC = 0x1D6FC  # 𝛼

# what the converter writes, and what browsers lay out well: a relation, and accents close to their letters
BETTER = {
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    "<mo>&#x0005E;</mo></mover>": '<mo stretchy="false">&#x002C6;</mo></mover>',
    '<mo stretchy="false">&#x0007E;</mo></mover>': '<mo stretchy="false">&#x002DC;</mo></mover>',
    "<mover><mi>": '<mover accent="true"><mi>',
}

_used: set[str] = set()


def on_page_content(content: str, **_: Any) -> str:
    """Convert the formulas of a page."""
    content = DISPLAY.sub(lambda found: to_mathml(found[1], "block"), content)
    content = INLINE.sub(lambda found: to_mathml(found[1], "inline"), content)
    for formula in MATH.findall(content):
        _used.update(html.unescape(TAG.sub("", formula)))
    return content


def to_mathml(formula: str, display: str) -> str:
    """A formula of LaTeX, escaped as HTML, as MathML."""
    made = convert(html.unescape(formula.strip()), display=display)
    for plain, better in BETTER.items():
        made = made.replace(plain, better)
    return made


def on_post_build(config: Any, **_: Any) -> None:
    """Write the font with the characters that the formulas use."""
    import ziamath
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf")
    subsetter = Subsetter(Options(flavor="woff", layout_features=["*"]))
    subsetter.populate(text="".join(_used | {italic(letter) for letter in _used}))
    subsetter.subset(font)
    font.flavor = "woff"
    font.save(Path(config.site_dir) / FONT)


def italic(letter: str) -> str:
    """The mathematical italic of a Latin or small Greek letter, and any other character as it is."""
    if letter == "h":
        return "\N{PLANCK CONSTANT}"
    if letter.isascii() and letter.isalpha():
        start, first = (ITALIC, "A") if letter.isupper() else (ITALIC + 26, "a")
        return chr(start + ord(letter) - ord(first))
    if "α" <= letter <= "ω":
        return chr(GREEK_ITALIC + ord(letter) - ord("α"))
    return letter
