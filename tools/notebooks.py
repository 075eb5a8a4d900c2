"""The notebooks of docs/notebooks: run them, and render them as pages.

`python -m tools.notebooks [NAME ...]` runs the notebooks with nbclient and keeps what they print and draw in
the files, together with a hash of the code that did it. As a hook of mkdocs, this file makes a page of each.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"
HASH = "flare_source"  # the key of the hash in the metadata of a notebook
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT / "src"),
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm would like a widget for its bars
}


def read(path: Path) -> dict[str, Any]:
    """The content of a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def code_of(notebook: dict[str, Any]) -> list[str]:
    """The code of its cells, in order."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def hash_code(notebook: dict[str, Any]) -> str:
    """A hash of the code, to tell whether the outputs are those of this code."""
    return hashlib.sha256(json.dumps(code_of(notebook)).encode()).hexdigest()[:16]


def run(path: Path) -> None:
    """Run a notebook from its start in a new kernel, and write its outputs into the file.

    Raises ValueError if it warned: a reader would be warned, too.
    """
    import nbformat
    from nbclient import NotebookClient

    from flare.storage.checkpoint import atomic

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=3600, record_timing=False)
        client.execute(cwd=folder, env={**os.environ, **ENVIRONMENT})
    tidy(notebook)
    with atomic(path) as partial:
        nbformat.write(notebook, partial)
    if warned := errors_of(notebook):
        raise ValueError(f"{path.name} must not write to stderr, got:\n{warned}")


def tidy(notebook: Any) -> None:
    """Keep what a page shows, and what tells whether it is up to date."""
    for number, cell in enumerate(notebook["cells"], 1):
        cell["id"], cell["metadata"] = f"cell-{number}", {}
        if cell["cell_type"] == "code":
            cell["outputs"] = _merge(_shorten(output) for output in cell["outputs"])
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        HASH: hash_code(notebook),
    }


def errors_of(notebook: dict[str, Any]) -> str:
    """What its cells wrote to stderr."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return "".join("".join(output["text"]) for output in outputs if output.get("name") == "stderr")


def _shorten(output: Any) -> Any:
    """An output with the one kind of data that a page shows."""
    if "data" in output:
        kind = "image/png" if "image/png" in output["data"] else "text/plain"
        output["data"], output["metadata"] = {kind: output["data"][kind]}, {}
    return output


def _merge(outputs: Iterable[Any]) -> list[Any]:
    """The outputs with consecutive pieces of printed text in one."""
    merged: list[Any] = []
    for output in outputs:
        if merged and "name" in output and output["name"] == merged[-1].get("name"):
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    return merged


def to_markdown(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and its pictures by their file names."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for kind, content in _outputs(cell):
            if kind == "image/png":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(content)
                parts.append(f"![Output of the code above]({file})")
            else:
                parts.append(f"```text\n{content.rstrip()}\n```")
    parts.insert(1, f"[Download this notebook]({name}.ipynb){{ download }}")
    return "\n\n".join(parts) + "\n", pictures


def _outputs(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The kind and the content of each output of a cell."""
    for output in cell.get("outputs", []):
        data = output["data"] if "data" in output else {"text/plain": output["text"]}
        for kind, content in data.items():
            yield kind, "".join(content)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages and their pictures to the site."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page, pictures = to_markdown(read(path), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for file, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{file}", content=content))
    return files


def main() -> None:
    """Run the named notebooks, or all of them."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            print(path.relative_to(ROOT), flush=True)
            run(path)


if __name__ == "__main__":
    main()
