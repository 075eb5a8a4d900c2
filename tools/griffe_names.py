"""An extension of griffe, which reads the docstrings for the reference: names as they are at run time.

- `flare.posteriors.dense` names a module in the source and a structure at run time, since the package imports
  the one over the other. The reference shows what users get.
- A structure puts its signature and its docstring together when it is made.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

import flare
from flare.posteriors import STRUCTURES


class RuntimeNames(griffe.Extension):
    """Replaces modules by the functions of the same name, and structures by functions."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Change the tree of names once it is complete."""
        if pkg.path != flare.__name__:
            return
        loader.resolve_aliases(implicit=True)
        for structure in STRUCTURES.values():
            file = pkg[f"posteriors.{structure.name}"]
            file.set_member(structure.name, _function(structure, file[structure.name]))
        for room in list(pkg.modules.values()):
            for file in list(room.modules.values()):
                if file.name in (room.exports or ()) and file.name in file.members:
                    alias = griffe.Alias(file.name, file[file.name], parent=room)
                    room.members[file.name] = alias


def _function(structure: Any, attribute: Any) -> griffe.Function:
    signature = inspect.signature(structure)
    parameters = [
        griffe.Parameter(
            name,
            annotation=str(found.annotation),
            kind=griffe.ParameterKind(found.kind.description),
            default=None if found.default is found.empty else repr(found.default),
        )
        for name, found in signature.parameters.items()
    ]
    return griffe.Function(
        structure.name,
        parameters=griffe.Parameters(*parameters),
        returns="Posterior",
        docstring=griffe.Docstring(structure.__doc__, parser="google"),
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
        parent=attribute.parent,
    )
