"""Valid files made wrong: bytes, headers, JSON values, archives. A seed gives the same file again."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

Chance = random.Random
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2, 10**6, 2**31, 2**63, 10**18, 10**40, -(2**63), 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "x", "cosine", "F64", "../../etc", "\ud800", "\u202e\x00é", "9" * 50,
    [], [[]], [0], [-1], [1, 2, 3], [10**12], [10**9, 10**9], {}, {"a": 1},
    {"name": "flow", "T": 2}, [float("nan")],
)  # fmt: skip
TOKENS = (
    b"\x00" * 8, b"\xff" * 8, struct.pack("<Q", 2**62), struct.pack("<Q", 100), b"{", b"}", b"[" * 3000,
    b'"', b",", b"NaN", b"1e999", b"-1", b"(1099511627776,)", b"'<f8'", b"'|O'", b"\x93NUMPY\x01\x00",
    b"PK\x03\x04", b"PK\x05\x06", "ü\u2028".encode(), b"\n", b"__import__('os')", b"cos\nsystem\n",
)  # fmt: skip


def corrupted(data: bytes, chance: Chance) -> bytes:
    """One to four changes of bytes: flips, cuts, insertions, repeats."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(7):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << chance.randrange(8)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + chance.choice((1, 8, 100))]
            case 3:
                out[at:at] = chance.choice(TOKENS)
            case 4:
                token = chance.choice(TOKENS)
                out[at : at + len(token)] = token
            case 5:
                out[at:at] = out[at : at + chance.choice((1, 16, 200))]
            case _:
                out[at : at + 8] = chance.randbytes(8)
    return bytes(out)


def changed(value: Any, chance: Chance) -> Any:
    """A JSON value with one of its nodes replaced, taken away, renamed or buried."""
    if chance.random() < 0.3 or not isinstance(value, (dict, list)) or not value:
        if chance.random() < 0.01:
            return _deep(chance.choice((50, 2000, 100_000)))
        return chance.choice(ODD)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        return [changed(v, chance) if i == place else v for i, v in enumerate(value)]
    key = chance.choice(list(value))
    match chance.randrange(8):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {(str(chance.choice(ODD)) if k == key else k): v for k, v in value.items()}
        case 2:
            return {**value, str(chance.choice(ODD)): chance.choice(ODD)}
        case _:
            return {k: changed(v, chance) if k == key else v for k, v in value.items()}


def _deep(levels: int) -> Any:
    out: Any = 1
    for _ in range(levels):
        out = [out]
    return out


def dumped(value: Any) -> bytes:
    """JSON text, also of what is too deep for the encoder."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b'{"format":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def json_file(data: bytes, chance: Chance) -> bytes:
    """JSON whose values are changed, or its bytes."""
    if chance.random() < 0.3:
        return corrupted(data, chance)
    value = _parsed(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        value = changed(value, chance)
    return dumped(value)


def safetensors_file(data: bytes, chance: Chance) -> bytes:
    """Safetensors whose header, metadata or bytes are changed; mostly without its checksum, so as to pass."""
    if (kind := chance.random()) < 0.25:
        return corrupted(data, chance)
    if kind < 0.4:
        return _misleading(data, chance)
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    meta = header.get("__metadata__", {})
    if chance.random() < 0.9:
        meta.pop("checksum", None)
    for _ in range(chance.choice((1, 1, 2, 4))):
        match chance.randrange(6):
            case 0 | 1 if meta:
                key = chance.choice(list(meta))
                meta[key] = dumped(changed(_parsed(meta[key]), chance)).decode("utf-8", "surrogatepass")
            case 2 if meta:
                key = chance.choice(list(meta))
                meta[chance.choice((key, "x"))] = chance.choice(
                    ("", "{", "NaN", "[" * 5000, "9" * 5000, "\x00")
                )
            case 3:
                body = _numbers(body, chance)
            case 4 if header:
                name = chance.choice(list(header))
                if isinstance(header[name], dict) and "shape" in header[name]:
                    _reshape(header[name], chance)
            case _:
                header = changed(header, chance)
                if not isinstance(header, dict):
                    header = {"a": header}
                break  # what is left need not be a header any more
    text = dumped(header)
    claimed = len(text) if chance.random() < 0.95 else chance.choice((0, 7, 10**6, 2**40, 2**64 - 1))
    return struct.pack("<Q", claimed) + text + body


def _misleading(data: bytes, chance: Chance) -> bytes:
    """A well-formed file in which one tensor means something else."""
    tensors = safetensors.numpy.load(data)
    size = struct.unpack("<Q", data[:8])[0]
    meta = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    meta.pop("checksum", None)
    if tensors:
        name = chance.choice(sorted(tensors))
        tensors[name] = np.ascontiguousarray(_other_tensor(tensors[name], chance))
    return safetensors.numpy.save(tensors, meta)


def _other_tensor(value: Any, chance: Chance) -> Any:
    """Numbers scaled, negated, equal, moved or repeated; another type; one row less; other axes."""
    with np.errstate(all="ignore"):
        match chance.randrange(7):
            case 0 | 1:
                return (value * chance.choice((-1, 0, 0.1, 1.001, 3))).astype(value.dtype)
            case 2:
                return value.astype(chance.choice(("f2", "f4", "f8", "i4", "i8", "u1", "?")))
            case 3:
                return np.full_like(value, chance.choice((-1, 0, 1)))
            case 4:
                return np.roll(value, 1)
            case 5:
                return np.broadcast_to(value[..., :1], value.shape)
            case _:
                return chance.choice((value[:-1], value[:, None], value.T))


def _parsed(text: Any) -> Any:
    """The JSON value that a text stands for; the text itself if an earlier change has left none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def _reshape(entry: dict[str, Any], chance: Chance) -> None:
    """Another shape or type of a tensor, with as many bytes or not."""
    match chance.randrange(4):
        case 0:
            entry["shape"] = chance.choice(
                ([], [1], [0], [*entry["shape"], 1], entry["shape"][::-1], [2**40])
            )
        case 1:
            entry["dtype"] = chance.choice(("I64", "F64", "F16", "BF16", "BOOL", "U8", "F8_E4M3", "C64", "X"))
        case 2:
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            entry["shape"], entry["dtype"] = [size], "U8"
        case _:
            entry["data_offsets"] = [entry["data_offsets"][0], chance.choice((0, 8, 2**40, -1))]


def _numbers(body: bytes, chance: Chance) -> bytes:
    """Eight or four bytes of the tensors as NaN, infinity, or a number of another size."""
    odd = (float("nan"), float("inf"), -1.0, 1e300, 0.0)
    new = chance.choice((struct.pack("<d", chance.choice(odd)), struct.pack("<f", chance.choice(odd[:3]))))
    new = chance.choice((new, struct.pack("<q", chance.choice((-1, 2**62, 10**9)))))
    at = chance.randrange(max(1, len(body) // 8)) * 8
    return body[:at] + new + body[at + len(new) :]


def npy_file(data: bytes, chance: Chance) -> bytes:
    """An npy file with another header: huge shapes, other types, code, nesting."""
    if chance.random() < 0.4:
        return corrupted(data, chance)
    descr = chance.choice(
        ("'<f8'", "'<f4'", "'|O'", "'<U9'", "'V8'", "[('a','<f4')]", "'<i8'", "1", "'>f2'", "'M8'")
    )
    order = chance.choice(("False", "True", "1", "None"))
    shape = chance.choice(
        ("(4,3)", "(4,)", "()", "(1099511627776,)", "(2,1099511627776)", "(-1,3)", "(0,3)", "(4,3.5)", "'a'",
         "(4,3,", "(9999999999999999999999,)", "(4,3),'x':1", "__import__('os')", "(" * 90 + ")" * 90)
    )  # fmt: skip
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    version = chance.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + data[128:]


def npz_file(data: bytes, chance: Chance) -> bytes:
    """An archive of arrays that are wrong, or many, or far larger than the archive."""
    if chance.random() < 0.4:
        return corrupted(data, chance)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    packing = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as archive:
        for name, member in members.items():
            match chance.randrange(9):
                case 0:
                    continue
                case 6 | 7 if name == "metadata.npy":
                    archive.writestr(name, _metadata(member, chance))
                case 6 | 7 | 8:
                    archive.writestr(name, member)
                case 1:
                    archive.writestr(
                        chance.choice(("../up.npy", "/abs.npy", "x.txt", "samples", "é.npy")), member
                    )
                case 2:
                    archive.writestr(name, npy_file(member, chance) + bytes(chance.choice((0, 10**6))))
                case _:
                    archive.writestr(name, npy_file(member, chance))
    return out.getvalue()


def _metadata(member: bytes, chance: Chance) -> bytes:
    """The header of a result, an array of one text, with another JSON value."""
    value = changed(json.loads(np.load(io.BytesIO(member)).item()), chance)
    out = io.BytesIO()
    text = dumped(value).decode("utf-8", "surrogatepass")
    np.save(out, np.array(text))
    return out.getvalue()


def csv_file(data: bytes, chance: Chance) -> bytes:
    """A table with other cells, rows and ends."""
    if chance.random() < 0.4:
        return corrupted(data, chance)
    cells = [line.split(b",") for line in data.splitlines()]
    for _ in range(chance.choice((1, 1, 3))):
        row = chance.choice(cells)
        row[chance.randrange(len(row))] = chance.choice(
            (
                b"",
                b"nan",
                b"inf",
                b"1e400",
                b"x",
                b"#",
                b'"1"',
                b"1_0",
                b"0x1",
                "١".encode(),
                b"\x00",
                b"1,2",
                b"9" * 5000,
            )
        )
    return chance.choice((b"\n", b"\r\n", b"\n\n", b"\x85")).join(b",".join(row) for row in cells)


MUTATORS: dict[str, Callable[[bytes, Chance], bytes]] = {
    ".json": json_file,
    ".safetensors": safetensors_file,
    ".npy": npy_file,
    ".npz": npz_file,
    ".csv": csv_file,
    ".parquet": corrupted,
}
