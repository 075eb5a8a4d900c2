"""Tensors and JSON on disk: safetensors without pickle, written atomically, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

PARTIAL = ".partial-"  # marks the names of files that are being written
CHECKSUM, _SHA256 = "checksum", "sha256:"


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` only if the block succeeds.

    >>> with atomic("notes.txt") as partial:
    ...     _ = partial.write_text("whole, or not there at all")
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: give the path of a file in it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{PARTIAL}", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)  # the error of a full disk does not name the file
        raise
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as JSON, atomically.

    >>> save_json("config.json", {"steps": 50})
    """
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def load_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raise a ValueError that names the file if it cannot be read.

    >>> save_json("config.json", {"steps": 50})
    >>> load_json("config.json")
    {'steps': 50}
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
        raise ValueError(f"{path} is not a JSON file ({error}); it may be truncated.") from error


def digest(*values: Any) -> str:
    """SHA-256 of numbers, text and tensors, and of dicts, lists and dataclasses of them.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    sha = hashlib.sha256()
    _update(sha, values)
    return sha.hexdigest()


def _update(sha: hashlib._Hash, value: Any) -> None:
    if isinstance(value, Tensor):
        sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
        sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    elif is_dataclass(value):
        _update(sha, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        _update(sha, [item for name in sorted(value) for item in (name, value[name])])
    elif isinstance(value, (list, tuple)):
        sha.update(f"[{len(value)}".encode())
        for item in value:
            _update(sha, item)
    else:
        sha.update(f"{type(value).__name__} {value!r};".encode())


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a safetensors file atomically, with JSON metadata and a checksum in its header.

    >>> save("x.safetensors", {"x": torch.ones(3)}, {"made by": "hand"})
    """
    header = {key: json.dumps(value) for key, value in (metadata or {}).items()}
    content = _separate(tensors)
    header[CHECKSUM] = json.dumps(_SHA256 + digest(content, header))
    with atomic(path) as partial:
        try:
            safetensors.torch.save_file(content, partial, metadata=header)
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory: safetensors cannot store tied weights."""
    separate = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in separate.items():
        if (address := tensor.untyped_storage().data_ptr()) in seen:
            separate[name] = tensor.clone()
        seen.add(address)
    return separate


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read (tensors, metadata) from a safetensors file; raise a ValueError that names a damaged file.

    The checksum that `save` writes is verified. Files without one are accepted.

    >>> save("x.safetensors", {"x": torch.ones(3)}, {"made by": "hand"})
    >>> tensors, metadata = load("x.safetensors")
    >>> tensors["x"], metadata["made by"]
    (tensor([1., 1., 1.]), 'hand')
    """
    with _open(path) as file:
        # cloned into aligned memory: matrix products of unaligned tensors may round differently
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        header = file.metadata() or {}
        content = {key: json.loads(value) for key, value in header.items()}
    # the values are searched too: a byte can flip in the key
    if CHECKSUM in content or any(str(value).startswith(_SHA256) for value in content.values()):
        found = content.pop(CHECKSUM, None)
        header.pop(CHECKSUM, None)
        if found != _SHA256 + digest(tensors, header):
            raise ValueError(
                f"{path} is damaged: its content does not match its checksum, so bytes have changed since it "
                "was written. Write it again, or restore it from a copy."
            )
    return tensors, content


def metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Metadata of a safetensors file, including its checksum; the tensors are neither read nor verified.

    >>> save("x.safetensors", {"x": torch.ones(3)}, {"made by": "hand"})
    >>> metadata("x.safetensors")["made by"]
    'hand'
    """
    with _open(path) as file:
        return {key: json.loads(value) for key, value in (file.metadata() or {}).items()}


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[Any]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}; expected a .safetensors file.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}); it may be truncated. "
            "Write it again, or restore it from a copy."
        ) from error


def check_fit(net: nn.Module, tensors: Mapping[str, Tensor], source: str = "the checkpoint") -> None:
    """Raise if names or shapes of the tensors differ from a network's, and list the differences.

    >>> check_fit(net, net.state_dict())
    """
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


def load_into(net: nn.Module, tensors: Mapping[str, Tensor], source: str = "the checkpoint") -> None:
    """Copy tensors into a network; raise, and change nothing, if any of them does not fit.

    >>> load_into(net, net.state_dict())
    """
    check_fit(net, tensors, source)
    net.load_state_dict(dict(tensors))
