"""A hook of mkdocs: documents next to the folder docs become pages, and search leaves out the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: the page of each document
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages; links to docs lose the folder."""
    from mkdocs.structure.files import File

    for document, page in PAGES.items():
        text = (Path(config.config_file_path).parent / document).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the long tables of the evidence out of search."""
    if page.file.src_uri.startswith("evidence/"):
        page.meta["search"] = {"exclude": True}
    return markdown
