"""The seeds of the fuzzing: one valid file of each kind that FLARE reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import flare
from flare import bench, noising, posteriors, subsets
from flare.storage import checkpoint

SHAPE = (2,)


class Net(nn.Module):
    """The smallest network that has all structures of a posterior."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, 2), t (B,) -> (B, 2)."""
        return self.two(torch.tanh(self.one(torch.cat([x, t[:, None].to(x) / 9], dim=1))))


def network() -> flare.Denoiser:
    """A network of 26 parameters, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return flare.Denoiser(Net())


def model() -> flare.Model:
    """The network with its noise levels, as the command line opens it."""
    return flare.Model(network(), flare.schedules.cosine(8), shape=SHAPE, source="fuzz.seeds:model")


def training() -> noising.Pairs:
    """The pairs that its posteriors are fitted to."""
    data = torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(0))
    return noising.pairs(data, flare.schedules.cosine(8), n=20, batch_size=20)


def plant(root: Path) -> dict[str, list[Path]]:
    """Write the files; returns them by the loader that reads them."""
    denoiser, pairs = network(), training()
    x = torch.randn(6, *SHAPE)
    fits = {
        "dense": posteriors.dense(denoiser, subsets.random(denoiser, count=5), pairs, 1.0, 1.0),
        "diagonal": posteriors.diagonal(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0),
        "low_rank": posteriors.low_rank(denoiser, subsets.everything(denoiser), pairs, 1.0, 1.0, rank=2),
        "kronecker": posteriors.kronecker(denoiser, subsets.named(denoiser, "two.*"), pairs, 1.0, 1.0),
        "matrix_free": posteriors.matrix_free(denoiser, subsets.last_layer(denoiser), pairs),
    }
    for name, posterior in fits.items():
        posterior.save(root / f"{name}.safetensors")
    result = flare.Result(
        x, torch.rand(6, *SHAPE), {"trace": torch.rand(6), "other": torch.rand(6)}, torch.rand(6, 2, 2),
        torch.rand(6, 3), {"seed": 1, "seconds": 0.1}, torch.rand(6, 4), torch.rand(6, 4),
        regions=torch.tensor([0, 0, 1, 1, 2, 2]),
    )  # fmt: skip
    result.save(root / "result.safetensors")
    result.save(root / "result.npz")
    flare.Result(x).save(root / "plain.safetensors")
    many = torch.randn(20, *SHAPE)  # enough for a fit
    np.save(root / "array.npy", many.numpy())
    np.savez(root / "array.npz", samples=many.numpy(), other=np.zeros(3))
    np.savetxt(root / "array.csv", many.numpy(), delimiter=",", header="a,b", comments="")
    checkpoint.save(root / "array.safetensors", {"x": many})
    arrays = [root / f"array.{end}" for end in ("npy", "npz", "csv", "safetensors")]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        pass
    else:
        table = pyarrow.table({"a": many[:, 0].numpy(), "b": many[:, 1].numpy()})
        pyarrow.parquet.write_table(table, root / "array.parquet")
        arrays.append(root / "array.parquet")
    config = bench.configure("grid", width=2, samples=30, steps=2)
    config["schedule"] = {"name": "cosine", "T": 8, "max_beta": 0.999}
    net, _ = bench.build(config)
    bench.save(root / "run", config, net.state_dict())
    (root / "labels.csv").write_text("index,bad\n0,0\n1,1\n2,0\n3,1\n")
    held_out = torch.randn(20, *SHAPE)
    scorer = flare.fit(model(), pairs.data, held_out=held_out, subset=5, pairs=20, check=False)
    scorer.save(root / "scorer")
    # without the checksum of the posterior, which would refuse every other one
    meta = checkpoint.load_json(root / "scorer" / "scorer.json") | {"posterior": None}
    meta.pop(checkpoint.CHECKSUM)
    sealed = meta | {checkpoint.CHECKSUM: checkpoint.digest(meta)}
    checkpoint.save_json(root / "scorer" / "scorer.json", sealed)
    return {
        "scorer": sorted((root / "scorer").iterdir()),
        "posterior": [root / f"{name}.safetensors" for name in fits],
        "result": [root / name for name in ("result.safetensors", "plain.safetensors", "result.npz")],
        "array": arrays,
        "checkpoint": [root / "run/model.safetensors", root / "dense.safetensors"],
        "json": [root / "run/config.json", root / "scorer/scorer.json"],
        "labels": [root / "labels.csv"],
        "run": [root / f"run/{name}" for name in ("config.json", "model.safetensors")],
    }
