"""The pictures of the page on plots, drawn by the code of the page. `python -m experiments.plots`."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

from tools.document import DOCS

PAGE = DOCS / "plots.md"
PART = re.compile(r"```python\n(.*?)```|!\[[^\]]*\]\((images/plots/[\w-]+\.png)\)", re.DOTALL)
COLORS = 128  # a palette makes the files half as large


def draw_page(folder: Path) -> None:
    """Run the code of the page from top to bottom; each picture is the figure that the code above it drew."""
    names: dict[str, Any] = {}
    with mpl.rc_context({"backend": "agg", "savefig.dpi": 100}):
        for code, path in PART.findall(PAGE.read_text(encoding="utf-8")):
            if code:
                exec(compile(code, PAGE.name, "exec"), names)
                continue
            made = io.BytesIO()
            plt.gcf().savefig(made)
            plt.close("all")
            picture = Image.open(made).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            picture.save(folder / path, optimize=True)


if __name__ == "__main__":
    draw_page(DOCS)
