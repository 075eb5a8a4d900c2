"""Tensors and JSON on disk: safetensors without pickle, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it replaces `path` only if the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as JSON, atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def load_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; an unreadable one is a ValueError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a JSON file ({error}); it may be truncated.") from error


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write tensors as safetensors, atomically, with JSON values in the header."""
    header = {key: json.dumps(value) for key, value in (metadata or {}).items()}
    with atomic(path) as partial:
        # copies: tied weights share memory, which the format does not know
        contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            safetensors.torch.save_file(contiguous, partial, metadata=header)
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read (tensors, metadata) from a safetensors file; a broken one is a ValueError that names it."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # cloned into aligned memory: products with unaligned tensors may round otherwise
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        return tensors, {key: json.loads(value) for key, value in header.items()}
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}); it may be truncated. "
            "Write it again, or restore it from a copy."
        ) from error


def load_into(net: nn.Module, tensors: Mapping[str, Tensor], source: str = "the checkpoint") -> None:
    """Copy tensors into a network; if anything does not fit, say what and change nothing."""
    expected = net.state_dict()
    problems = [f"missing: {name}" for name in expected if name not in tensors]
    problems += [f"not in the network: {name}" for name in tensors if name not in expected]
    problems += [
        f"{name}: the network has {tuple(expected[name].shape)}, {source} has {tuple(tensor.shape)}"
        for name, tensor in tensors.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if problems[5:] else "")
        raise ValueError(f"{source} does not fit {type(net).__name__}: {shown}.")
    net.load_state_dict(dict(tensors))
