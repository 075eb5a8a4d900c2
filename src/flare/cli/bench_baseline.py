"""The worker of `flare bench baseline`: draw or score samples of benchmark models by a published baseline."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .. import __version__
from ..bench import Benchmark, load
from ..bench.baselines import BASELINES, Baseline, hyperdm
from ..core.noise_streams import REAL_STREAM, mix_seed
from ..core.progress import Progress
from ..core.validation import one_of, require_device, require_positive_int
from ..diffusion import noising
from ..diffusion.noising import Pairs
from ..network.training import TrainConfig, Training, train
from ..results.result import Result
from ..results.result_files import check_suffix
from ..storage import checkpoint
from ..storage.resume import Resume
from .bars import bar
from .claims import claim, refuse_existing
from .flags import parse_batch_size
from .output import remark, show_facts
from .parts import run_in_parts
from .samples_in import read_array

N = 1000  # samples
REAL = 2_000  # real samples to compare with
PART = 500  # samples per part if the batch size is "auto": the parts must not depend on the memory
HYPERNETWORK = "hypernetwork.safetensors"
TRAIN_STEPS = 20_000  # optimizer steps of a hypernetwork
EXISTING = ("samples", "real data")  # needs of baselines that score existing samples
#: the flags that only some baselines take, and what these baselines need
TAKEN_BY = {
    "--samples": EXISTING,
    "--real": ("real data",),
    "--hypernetwork": ("hypernetwork",),
    "--train-steps": ("hypernetwork",),
}


def run_baseline(
    name: str,
    runs: Sequence[str],
    n: int | None,
    option: Sequence[str],
    *,
    samples: Path | None,
    real: int | None,
    pairs: int,
    hypernetwork: Path | None,
    train_steps: int | None,
    sampler: str,
    steps: int | None,
    file: Path,
    overwrite: bool,
    batch_size: str,
    seed: int,
    device: str | None,
    json: bool,
    quiet: bool,
) -> None:
    """Run a baseline in parts and write its samples with their scores; the arguments are the flags."""
    baseline = BASELINES.find(name)
    own = parse_options(baseline, option)
    given = {
        "--samples": samples, "--real": real, "--hypernetwork": hypernetwork, "--train-steps": train_steps
    }  # fmt: skip
    for flag, value in given.items():
        if value is not None and baseline.needs not in TAKEN_BY[flag]:
            raise ValueError(f"{flag} cannot be used with {name}, which needs {baseline.needs}.")
    if baseline.needs in EXISTING and (samples is None or n is not None):
        raise ValueError(f"{name} scores existing samples: name their file with --samples, and leave out -n.")
    size = parse_batch_size(batch_size)
    check_suffix(file)
    refuse_existing(file, overwrite)
    models = _open_models(baseline, runs, device)
    model, table = models[0], models[0].sampler(sampler, steps)
    count, silent = require_positive_int("-n", N if n is None else n), quiet or json
    inputs: dict[str, Any] = {"table": table, "weights": [each.denoiser.fingerprint() for each in models]}
    if "clip" in baseline.options:
        own.setdefault("clip", model.clip)
    if samples is not None:
        existing = _read_samples(samples, model)
        count, inputs["samples"] = len(existing), existing
        detector = baseline.run(*((model.denoiser, model.schedule) if baseline.calls_model else ()), **own)
        if baseline.needs == "real data":
            inputs["real"] = _draw_real(model, REAL if real is None else real, seed)
            detector.fit(inputs["real"], seed=seed)
        make: Callable[..., Result] = partial(_score_part, detector, existing, seed, size)
    else:
        networks: Any = [each.denoiser for each in models] if baseline.needs == "models" else model.denoiser
        needed: list[Any] = []
        if baseline.fit is not None:
            inputs["pairs"] = require_positive_int("--pairs", pairs)
            needed = [baseline.fit(model.denoiser, _draw_pairs(model, pairs, seed))]
        elif baseline.needs == "hypernetwork":
            needed = [_load_or_train(model, runs[0], hypernetwork, train_steps, seed, silent)]
            inputs["hypernetwork"] = dict(needed[0].state_dict())
        make = partial(
            baseline.run, networks, table, *needed, shape=model.shape, seed=seed, batch_size=size, **own
        )
    trajectories = 0 if samples else len(models) * baseline.trajectories(**own)
    job = BaselineJob(
        file=file, n=count, part_size=PART if size == "auto" else size, title=f"{name} of {model.name}",
        items_per_part=max(1, trajectories * len(table)), shape=model.shape, dtype=model.denoiser.dtype,
        about={"run": runs[0] if len(runs) == 1 else list(runs), "baseline": name, "seed": seed, **own},
        inputs=inputs, run=make,
    )  # fmt: skip
    show_facts(json, quiet, run_in_parts(job, silent), last=str(file))


@dataclass(frozen=True, kw_only=True)
class BaselineJob:
    """A baseline on n samples, made in parts.

    Attributes:
        file: The file to write.
        n: The number of samples.
        part_size: The number of samples per part.
        title: The title of the progress bar.
        items_per_part: The number of items that a part passes through its progress.
        shape: The shape of one sample.
        dtype: The dtype of the samples.
        about: The settings, with the keys of the written file.
        inputs: What else the result depends on.
        run: Makes the result of samples first..first+n−1, called as run(n=..., first=..., progress=...).
        started: When the job started, for the seconds that it took.
    """

    file: Path
    n: int
    part_size: int
    title: str
    items_per_part: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    about: dict[str, Any]
    inputs: dict[str, Any]
    run: Callable[..., Result]
    started: float = field(default_factory=time.perf_counter)

    def identity(self) -> dict[str, Any]:
        """Everything that a part depends on besides its first sample and its size."""
        return self.about | self.inputs | {"n": self.n, "version": __version__}

    def make(self, first: int, count: int, progress: Progress) -> Result:
        """Run the baseline on samples first..first+count−1."""
        return self.run(n=count, first=first, progress=progress)

    def make_lost(self, first: int, count: int) -> Result:
        """A part of NaN."""
        return Result(torch.full((count, *self.shape), torch.nan, dtype=self.dtype))

    def write(self, whole: Result) -> dict[str, Any]:
        """Write the samples with their settings; return the settings and the number of lost samples."""
        seconds = round(time.perf_counter() - self.started, 2)
        about = self.about | {"n": self.n, "seconds": seconds, "scores": list(whole.scores)}
        about |= {key: value for key, value in whole.about.items() if key not in about}
        whole.save(self.file, **about)
        lost = int(whole.lost.sum())
        return {"samples": str(self.file), **about, **({"lost": lost} if lost else {})}


def _score_part(
    detector: Any,
    existing: Tensor,
    seed: int,
    batch_size: int | Literal["auto"],
    *,
    n: int,
    first: int,
    progress: Progress,
) -> Result:
    """Score the existing samples first..first+n−1; the part is one item of the progress."""
    x = existing[first : first + n]
    (values,) = progress(detector.score(x, seed=seed, first=first, batch_size=batch_size) for _ in range(1))
    return Result(x, scores={detector.name: values})


def parse_options(baseline: Baseline, texts: Sequence[str]) -> dict[str, Any]:
    """The values of --option key=value, checked against the signature of the baseline.

    >>> parse_options(BASELINES["bayesdiff"], ["draws=3", "total=false", "variant=released"])
    {'draws': 3, 'total': False, 'variant': 'released'}
    """
    defaults, found = baseline.options, {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (sign and value):
            raise ValueError(f"--option must be key=value, such as draws=20, got {text!r}.")
        if not defaults:
            raise ValueError(f"--option {key} cannot be used with {baseline.name}, which has no options.")
        parsed = _parse_value(value)
        default = defaults[one_of(f"option of {baseline.name}", key, defaults)]
        if isinstance(default, bool) and not isinstance(parsed, bool):
            raise ValueError(f"--option {key} takes true or false, got {value!r}.")
        is_word = isinstance(parsed, bool) or (isinstance(parsed, str) and parsed != "exact")
        if isinstance(default, (int, float, tuple)) and not isinstance(default, bool) and is_word:
            raise ValueError(f"--option {key} takes numbers, such as {key}=1 or {key}=1,2, got {value!r}.")
        found[key] = parsed
    return found


def _parse_value(text: str) -> Any:
    """A number, several with commas in between, true or false, or a word."""
    if text in ("true", "false"):
        return text == "true"
    try:
        numbers = [int(word) if word.strip().isdecimal() else float(word) for word in text.split(",")]
    except ValueError:
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def _open_models(baseline: Baseline, runs: Sequence[str], device: str | None) -> list[Benchmark]:
    """Open one model, or several with the same shape and schedule for a baseline that needs several."""
    if (baseline.needs == "models") != (len(runs) > 1):
        wanted = "at least 2 models" if baseline.needs == "models" else "one model"
        raise ValueError(f"{baseline.name} needs {wanted}, got {len(runs)}: {', '.join(runs)}.")
    models = [load(run) for run in runs]
    for other in models[1:]:
        mine, theirs = ((model.shape, model.schedule.spec) for model in (models[0], other))
        if mine != theirs:
            raise ValueError(
                f"the models must have the same shape and schedule, got {models[0].name} with {mine} and "
                f"{other.name} with {theirs}."
            )
    for model in models if device is not None else ():
        model.denoiser = model.denoiser.to(require_device("--device", str(device)))
    return models


def _read_samples(path: Path, model: Benchmark) -> Tensor:
    """Read samples that must have the shape of the model's."""
    array = read_array(path)
    if tuple(array.shape[1:]) != model.shape:
        raise ValueError(
            f"{path} has samples of shape {tuple(array.shape[1:])}, the model's are {model.shape}."
        )
    return array.to(model.denoiser.device)


def _draw_pairs(model: Benchmark, count: int, seed: int) -> Pairs:
    """Training pairs for the posterior of a baseline."""
    return noising.pairs(model.data, model.schedule, n=count, seed=seed, weighting=model.weighting)


def _draw_real(model: Benchmark, count: int, seed: int) -> Tensor:
    """Random rows of the training data, or all of them if there are fewer."""
    require_positive_int("--real", count)
    generator = torch.Generator().manual_seed(mix_seed(seed, REAL_STREAM))
    rows = torch.randperm(len(model.data), generator=generator)[:count].sort().values
    return model.data[rows].to(model.denoiser.device)


def _load_or_train(
    model: Benchmark, run: str, file: Path | None, steps: int | None, seed: int, quiet: bool
) -> hyperdm.HyperNetwork:
    """Load the hypernetwork in a file; if there is none, train one on the data of the model and write it.

    Training starts from the weights of the model. The same command resumes it after an interruption.
    """
    if steps is not None:
        require_positive_int("--train-steps", steps)
    if file is None:
        if not Path(run).is_dir():
            raise ValueError(
                f"{run} is a shipped model: name the file of its hypernetwork, to be read or written, with "
                "--hypernetwork FILE."
            )
        file = Path(run) / HYPERNETWORK
    denoiser = model.denoiser.to("cpu")
    structure = denoiser.fingerprint()["structure"]
    with claim(file):
        if file.is_file():
            _refuse_other(file, structure, steps)
            return hyperdm.load(file, denoiser.module)
        hyper = hyperdm.HyperNetwork(copy.deepcopy(denoiser.module), seed=seed).to(denoiser.dtype)
        config = TrainConfig(steps=steps or TRAIN_STEPS, weighting=model.weighting, seed=seed)
        data = model.data.to(denoiser.dtype)
        training = Training(hyper, data, model.schedule, config, denoiser.prediction)
        resume = Resume.beside(file)
        parts = resume.for_job(denoiser.fingerprint(), data, model.schedule, vars(config))
        title = f"training the hypernetwork of {model.name}"
        draw = bar(title, quiet, lambda frame: f"loss {frame.loss:.4f}")
        for _ in draw(train(training, parts.directory)):
            pass
        checkpoint.load_into(hyper, training.weights())
        resume.clear()
        hyperdm.save(file, hyper.eval(), steps=config.steps, structure=structure)
        if not quiet:
            remark("", f"wrote the hypernetwork to {file}.")
        return hyper


def _refuse_other(file: Path, structure: str, steps: int | None) -> None:
    """Raise if the file belongs to another network or another number of steps."""
    found = checkpoint.metadata(file)
    if found.get("structure", structure) != structure:
        raise ValueError(f"{file} is the hypernetwork of another network; choose another --hypernetwork.")
    if steps is not None and found.get("steps", steps) != steps:
        raise ValueError(
            f"{file} was trained for {found['steps']} steps, not for {steps}. Leave out --train-steps to use "
            "it, or choose another --hypernetwork."
        )
