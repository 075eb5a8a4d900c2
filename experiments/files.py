"""Files of the studies: tensors and JSON, written atomically."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: Path, value: Any) -> None:
    """Write a JSON value."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def load_json(path: Path) -> Any:
    """Read a JSON value."""
    return json.loads(path.read_text(encoding="utf-8"))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name; each is copied, because safetensors stores no tensors that share memory."""
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with atomic(path) as partial:
        safetensors.torch.save_file(copies, partial)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors by name, cloned: matrix products of unaligned tensors may round differently."""
    return {name: value.clone() for name, value in safetensors.torch.load_file(path).items()}
