"""`make fuzz`: valid files made wrong, read by every loader and the command line; writes its section.

An input is refused with an error that says why, or it is read, and then it can be used. It writes nothing
outside its directory, starts no program, unpickles nothing, takes no memory that its bytes do not fill, and
ends in time. The first that does otherwise ends the run, and is kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import flare
from tools.document import DOCS, ROOT, machine, replace_section, table

from .commands import arguments, called
from .mutate import MUTATORS, ODD
from .seeds import plant
from .targets import DIRECTORIES, FILES, build, classify, load_with
from .watching import Watch, inventory

PAGE = DOCS / "evidence" / "reliability.md"
MEMORY = 8 << 30  # bytes of address space: an input that needs more is a finding
PLAN = {
    "posterior": 9000, "result": 9000, "array": 15000, "checkpoint": 8000, "json": 4000, "run": 1500,
    "scorer": 4000,
}  # fmt: skip
VALUES, COMMANDS, GUIDED = 3000, 1000, 1000
NAMES = {
    "posterior": "`posteriors.load`, five structures",
    "result": "`Result.load`: safetensors, npz, csv",
    "array": "arrays: npy, npz, safetensors, csv, and parquet where pyarrow is",
    "checkpoint": "`checkpoint.load`",
    "json": "`checkpoint.load_json`",
    "run": "`bench.load` of run directories",
    "scorer": "`flare.load` of scorers",
}


def main() -> None:
    """Run everything and print the section; with --write, put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the inputs, for a quick run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    os.environ["COLUMNS"] = "100"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        home = Path(root) / "home"
        home.mkdir()
        files = plant(Path(root) / "seeds")
        roots = (Path(root) / "seeds", Path(flare.__file__).parent)
        before = inventory(*roots)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        fuzzing = Fuzzing(files, home, options.seed, options.share)
        rows = [fuzzing.files_of(kind, count) for kind, count in PLAN.items()]
        rows.append(fuzzing.values())
        rows.append(fuzzing.command_line())
        guided = fuzzing.guided()
        if (after := inventory(*roots)) != before:
            sys.exit(f"FOUND: files changed: {set(before.items()) ^ set(after.items())}")
    text = page(rows, guided, time.perf_counter() - began)
    print(text)
    if options.write:
        replace_section(PAGE, "fuzz", text)


class Fuzzing:
    """The inputs of each kind, one after another.

    Args:
        files: valid ones, by what reads them.
        home: the only directory that may be written to.
        seed: of all inputs.
        share: of the planned numbers.
    """

    def __init__(self, files: dict[str, list[Path]], home: Path, seed: int, share: float) -> None:
        self.sources, self.home, self.seed, self.share = files, home, seed, share
        self.watch = Watch(home)

    def files_of(self, kind: str, count: int) -> list[object]:
        """Files of one kind, changed."""

        def one(chance: random.Random, index: int) -> Callable[[], str]:
            source = self.sources[kind][index % len(self.sources[kind])]
            data = MUTATORS[source.suffix](source.read_bytes(), chance)
            path = self.home / f"given{source.suffix}"
            if kind in DIRECTORIES:
                return lambda: classify(lambda: load_with(kind, source, self.home, data))
            path.write_bytes(data)
            return lambda: classify(lambda: FILES[kind](path))

        for source in self.sources[kind]:  # sanity check: the valid files are read
            valid = self._valid(kind, source)
            assert valid == "read", (source, valid)
        return self._count(NAMES[kind], count, one)

    def _valid(self, kind: str, source: Path) -> str:
        if kind in DIRECTORIES:
            return classify(lambda: load_with(kind, source, self.home, source.read_bytes()))
        return classify(lambda: FILES[kind](source))

    def values(self) -> list[object]:
        """JSON values of every shape as the description of a schedule, by hypothesis."""
        odd = (
            st.sampled_from([v for v in ODD if v != 10**6])
            | st.floats()
            | st.integers()
            | st.text(max_size=9)
        )
        value = st.recursive(
            odd, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner)
        )
        named = st.sampled_from(
            ["cosine", "linear", "scaled_linear", "flow", "from_betas", "from_alpha_bars"]
        )
        keys = st.sampled_from(
            ["T", "max_beta", "start", "end", "shift", "time_scale", "betas", "alpha_bars"]
        )
        small = st.integers(-2, 40) | st.lists(st.floats(0, 1), max_size=5)
        spec = st.builds(lambda n, rest: {"name": n, **rest}, named, st.dictionaries(keys, small | value))
        counts: Counter[str] = Counter()
        count, began = max(1, round(VALUES * self.share)), time.perf_counter()

        @hypothesis.seed(self.seed)
        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(spec | value)
        def every(given_value: Any) -> None:
            with self.watch.watching():
                counts[classify(lambda: build(given_value))] += 1

        every()
        return _row("`schedules.build`, JSON values by hypothesis", counts, time.perf_counter() - began)

    def command_line(self) -> list[object]:
        """Commands with wrong arguments and files."""

        def one(chance: random.Random, index: int) -> Callable[[], str]:
            line = arguments(chance, self.sources, self.home)
            return lambda: called(line, self.home)

        return self._count("the command line: eleven commands", COMMANDS, one)

    def _count(
        self, name: str, planned: int, one: Callable[[random.Random, int], Callable[[], str]]
    ) -> list[object]:
        counts: Counter[str] = Counter()
        began = time.perf_counter()
        for index in range(max(1, round(planned * self.share))):
            call = one(random.Random(f"{name} {self.seed} {index}"), index)
            try:
                with self.watch.watching():
                    counts[call()] += 1
            except BaseException:
                print(f"FOUND at input {index} of {name}, seed {self.seed}", file=sys.stderr)
                raise
        return _row(name, counts, time.perf_counter() - began)

    def guided(self) -> list[list[object]]:
        """The same loaders under atheris, each in its own process, if it is installed."""
        if importlib.util.find_spec("atheris") is None:
            return []
        return [
            self._guide(kind, suffix)
            for kind in ("posterior", "result", "array", "json")
            for suffix in sorted({source.suffix for source in self.sources[kind]})
        ]

    def _guide(self, kind: str, suffix: str) -> list[object]:
        corpus = self.home / f"corpus-{kind}{suffix}"
        corpus.mkdir()
        for source in self.sources[kind]:
            if source.suffix == suffix:
                (corpus / source.name).write_bytes(source.read_bytes())
        command = [sys.executable, "-m", "fuzz.guided", kind, suffix, self.home]
        command += [f"-runs={max(1, round(GUIDED * self.share))}", "-timeout=60", "-rss_limit_mb=8000"]
        command += [f"-artifact_prefix={self.home}/", f"-seed={self.seed + 1}", corpus]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        began = time.perf_counter()
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, cwd=self.home, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        told = re.search(r"Done (\d+) runs", done.stderr)
        if done.returncode or told is None:
            sys.exit(f"FOUND by atheris in {kind}{suffix}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        seconds = f"{time.perf_counter() - began:.0f}"
        return [f"{NAMES.get(kind, kind).split(':')[0]}, {suffix}", told[1], seconds]


def _row(name: str, counts: Counter[str], seconds: float) -> list[object]:
    good = counts["read"] + counts["exit 0"] + counts["exit 3"]
    return [name, sum(counts.values()), good, sum(counts.values()) - good, f"{seconds:.0f}"]


def page(rows: list[list[object]], guided: list[list[object]], seconds: float) -> str:
    """The section of the page."""
    total = sum(int(str(row[1])) for row in rows) + sum(int(str(row[1])) for row in guided)
    text = f"""## Fuzzing

`make fuzz` corrupts valid files and reads them. It flips, cuts and repeats bytes. It writes headers with
other shapes, types and terabytes of data, scales and repeats tensors, changes types, nests JSON too deeply,
builds archives that unpack to more than they declare, and adds NaN, empty arrays and text in many scripts. An
input passes if FLARE reads it and can use it, or if FLARE rejects it with a reason (on the command line: exit
code 2 and a message, no traceback). Meanwhile, the process is audited. It must not write outside the run's
directory, start a program, unpickle anything, allocate more memory than the input fills, or take more than
20 seconds. Every problem that we found this way has a test in `tests/storage/test_bad_files.py` or
`tests/scorer/test_scorer_files.py`.

**{total:,} inputs passed, in {seconds / 60:.0f} minutes.**

{table(["what reads them", "inputs", "read", "refused", "seconds"], rows)}
"""
    if guided:
        from importlib.metadata import version

        text += f"""
With atheris {version("atheris")}, which keeps inputs that reach new lines of FLARE:

{table(["what reads them", "inputs", "seconds"], guided)}
"""
    else:
        text += (
            "\natheris is not installed. If it is, coverage-guided fuzzing of the same loaders runs, too.\n"
        )
    return text + f"\nMeasured on {machine()}; hypothesis {hypothesis.__version__}.\n"


if __name__ == "__main__":
    main()
