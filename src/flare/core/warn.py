"""Warnings that point to the code of the user, however deep in the library they arise."""

from __future__ import annotations

import sys
import warnings

_INSIDE = ("flare", "torch", "functools", "contextlib")  # packages whose frames are passed over


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the line that called the library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
