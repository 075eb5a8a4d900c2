"""An extension of griffe, which reads the docstrings for the reference.

- `flare.posteriors.dense` names a module and the function that the package imports from it. Users get the
  function, so the reference shows it.
- Examples in docstrings become blocks of code, and comments of constants their descriptions.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class RuntimeNames(griffe.Extension):
    """Replaces modules by the functions of the same name."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Make the docstring ready for Markdown."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
        elif isinstance(obj, griffe.Attribute) and (comment := find_comment(obj)):
            obj.docstring = griffe.Docstring(comment, parent=obj)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change the tree of names once it is complete."""
        if pkg.path == "flare":
            loader.resolve_aliases(implicit=True)
            show_functions(pkg)


def show_functions(package: griffe.Module) -> None:
    """Put functions in the place of the modules that define them, where a package exports their name."""
    for file in list(package.modules.values()):
        show_functions(file)
        if file.name in (package.exports or ()) and file.name in file.members:
            package.members[file.name] = griffe.Alias(file.name, file[file.name], parent=package)


def fence_examples(docstring: str) -> str:
    """Put the lines from >>> to the next empty line into a block of code."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


def find_comment(attribute: griffe.Attribute) -> str:
    """The comment of a constant: the line above that starts with #:, or the end of its own line."""
    lines = attribute.lines_collection[attribute.filepath]
    if attribute.lineno is None or attribute.lineno < 2:
        return ""
    above, own = lines[attribute.lineno - 2], lines[attribute.lineno - 1]
    return above.removeprefix("#:").strip() if above.startswith("#:") else own.partition("  # ")[2]
