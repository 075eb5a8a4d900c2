"""An extension of griffe, which reads the docstrings for the reference: names as they are at run time.

- `flare.posteriors.dense` names a module in the source and a structure at run time, since the package imports
  the one over the other. The reference shows what users get.
- A structure puts its signature and its docstring together when it is made.
- Examples in docstrings become blocks of code, and comments of constants their descriptions.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import flare
from flare.posteriors import STRUCTURES

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class RuntimeNames(griffe.Extension):
    """Replaces modules by the functions of the same name, and structures by functions."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Make the docstring ready for Markdown."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
        elif isinstance(obj, griffe.Attribute) and (comment := find_comment(obj)):
            obj.docstring = griffe.Docstring(comment, parent=obj)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change the tree of names once it is complete."""
        if pkg.path != flare.__name__:
            return
        loader.resolve_aliases(implicit=True)
        for structure in STRUCTURES.values():
            file = pkg[f"posteriors.{structure.name}"]
            file.set_member(structure.name, make_function(structure, file[structure.name]))
        for room in list(pkg.modules.values()):
            for file in list(room.modules.values()):
                if file.name in (room.exports or ()) and file.name in file.members:
                    room.members[file.name] = griffe.Alias(file.name, file[file.name], parent=room)


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


def make_function(structure: Any, attribute: Any) -> griffe.Function:
    """A structure as a function with the signature and the docstring that it has at run time."""
    parameters = [
        griffe.Parameter(
            name,
            annotation=str(found.annotation),
            kind=griffe.ParameterKind(found.kind.description),
            default=None if found.default is found.empty else repr(found.default),
        )
        for name, found in inspect.signature(structure).parameters.items()
    ]
    made = griffe.Function(
        structure.name,
        parameters=griffe.Parameters(*parameters),
        returns="Posterior",
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
        parent=attribute.parent,
    )
    made.docstring = griffe.Docstring(fence_examples(structure.__doc__), parser="google", parent=made)
    return made
