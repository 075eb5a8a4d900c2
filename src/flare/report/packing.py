"""Numbers inside the page: little-endian, in base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from torch import Tensor


def pack(values: Tensor, bits: int, log: bool = False) -> dict[str, Any]:
    """Floats (32 or 64 bits) or codes of 8 or 16 bits over the range of the values.

    With `log` the codes are even steps of the logarithm and code 0 is zero: variances span decades, and
    each needs the same relative precision.
    """
    array = values.detach().cpu().double().numpy()
    out: dict[str, Any] = {"shape": list(array.shape), "bits": bits, "log": log}
    if bits >= 32:
        codes = array.astype(f"<f{bits // 8}")
    else:
        top = 2**bits - 1
        positive = array > 0
        scaled = np.log(np.where(positive, array, 1.0)) if log else array
        within = scaled[positive] if log else scaled
        low, high = (float(within.min()), float(within.max())) if within.size else (0.0, 0.0)
        unit = (scaled - low) / ((high - low) or 1.0)
        codes = np.where(positive, 1 + unit * (top - 1), 0) if log else unit * top
        codes = codes.clip(0, top).round().astype(f"<u{bits // 8}")
        out |= {"low": low, "high": high}
    return out | {"data": base64.b64encode(codes.tobytes()).decode()}
