"""Latents as the tokens of a Flux transformer: patches of 2 × 2, with their positions.

FLARE keeps states as (n, C, H, W); the network sees (n, H/2·W/2, 4·C).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PATCH = 2
_TIME_SCALE = 1000  # the network multiplies its time by this


def pack(x: Tensor) -> Tensor:
    """The tokens of latents (n, C, H, W)."""
    n, C, H, W = x.shape
    patches = x.reshape(n, C, H // PATCH, PATCH, W // PATCH, PATCH).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(n, (H // PATCH) * (W // PATCH), C * PATCH**2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """The latents (n, C, height, width) of tokens."""
    n, h, w = len(tokens), height // PATCH, width // PATCH
    patches = tokens.reshape(n, h, w, -1, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(n, -1, height, width)


def unpack_call(tokens: Tensor, positions: Tensor) -> Tensor:
    """The latents of the tokens of a call, whose positions say how many rows and columns there are."""
    height, width = (PATCH * (int(positions[:, axis].max()) + 1) for axis in (1, 2))
    return unpack(tokens, height, width)


def arguments(name: str, x: Tensor, t: Tensor, cond: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the network at latents x (n, C, H, W)."""
    height, width = x.shape[2:]
    if height % PATCH or width % PATCH:
        raise ValueError(
            f"{name} takes latents of even height and width, got {height} × {width}; choose another size."
        )
    rows, columns = torch.arange(height // PATCH), torch.arange(width // PATCH)
    places = torch.cartesian_prod(torch.zeros(1, dtype=rows.dtype), rows, columns)
    text = cond["encoder_hidden_states"].shape[1]
    return {
        "hidden_states": pack(x),
        "timestep": t.to(x.dtype) / _TIME_SCALE,
        "img_ids": places.to(x),
        "txt_ids": x.new_zeros(text, 3),
        **cond,
    }
