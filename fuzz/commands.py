"""The command line with wrong arguments and wrong files, in this process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path

from flare.cli import main

from .mutate import MUTATORS, Chance
from .watching import Finding

WORDS = (
    "", "x", "-", "--", "-1", "0", "1", "2", "3", "0.5", "1.5", "nan", "inf", "-inf", "1e-9", "1e400", "é",
    "trace", "other", "tangent", "none", "monte_carlo", "grid", "sines", "ddim", "cosine", "marglik", "a,b",
    "nonsense:thing", ":", "cpu", "cuda:99", "meta", "../home/up.npz", "out.csv", "out.txt",
    "--json", "--quiet",
)  # fmt: skip
# the commands with options that make each quick, and those that may be taken in addition
SMALL = {
    "info": ["FILE"],
    "filter": ["FILE", "--keep", "0.5", "--out", "kept.npz"],
    "report": ["FILE", "--out", "page.html"],
    "evaluate": ["FILE", "--data", "ARRAY"],
    "score": ["RUN", "--samples", "ARRAY", "--directions", "2", "--repeats", "1", "--out", "scored.csv"],
    "sample": ["RUN", "-n", "3", "--steps", "2", "--directions", "2", "--out", "drawn.safetensors"],
    "fit": ["RUN", "--structure", "diagonal", "--pairs", "20", "--out", "fitted.safetensors"],
    "check": ["RUN", "-n", "3", "--draws", "2", "--steps", "2"],
    "train": [
        "grid",
        "--out",
        "trained",
        "--steps",
        "1",
        "--samples",
        "20",
        "--batch-size",
        "4",
        "--overwrite",
    ],
}
MORE = {
    "filter": ("--below", "--strata", "--typical", "--score", "--json"),
    "report": ("--keep", "--score", "--title", "--json"),
    "evaluate": ("--truth", "--keep", "--score", "--json"),
    "score": ("--posterior", "--data", "--seed", "--device", "--model", "--json"),
    "sample": (
        "--rule",
        "--score",
        "--posterior",
        "--sampler",
        "--batch-size",
        "--data",
        "--device",
        "--model",
    ),
    "fit": (
        "--subset",
        "--fraction",
        "--count",
        "--prior",
        "--scale",
        "--rank",
        "--data",
        "--model",
        "--clip",
    ),
    "check": ("--posterior", "--sampler", "--seed", "--data", "--model"),
    "train": (
        "--learning-rate",
        "--ema",
        "--weighting",
        "--width",
        "--model",
        "--data",
        "--schedule",
        "--resume",
    ),
}


def arguments(chance: Chance, files: dict[str, list[Path]], home: Path) -> list[str]:
    """A command and what follows it: the usual, with words, options and files exchanged."""
    command = chance.choice(list(SMALL))
    line = [command, *SMALL[command]]
    for option in chance.sample(
        MORE.get(command, ("--json",)), chance.randrange(min(3, len(MORE.get(command, ("",)))))
    ):
        line += [option, chance.choice((*WORDS, "FILE", "ARRAY", "RUN"))]
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        place = chance.randrange(len(line))
        match chance.randrange(4):
            case 0:
                del line[place]
            case 1:
                line.insert(place, chance.choice(WORDS))
            case _ if line[place] not in (
                "-n",
                "--steps",
                "--out",
                "--samples",
                "train",
                "--batch-size",
                "--pairs",
            ):
                line[place] = chance.choice(WORDS)
    kinds = {"FILE": ["result", "result", "posterior"], "ARRAY": ["array"], "RUN": ["run"]}
    return [_given(word, kinds[word], chance, files, home) if word in kinds else word for word in line]


def _given(word: str, kinds: list[str], chance: Chance, files: dict[str, list[Path]], home: Path) -> str:
    """A valid file or one that is wrong, as an argument."""
    source = chance.choice(files[chance.choice(kinds)])
    data = source.read_bytes()
    if chance.random() < 0.5:
        data = MUTATORS[source.suffix](data, chance)
    if word == "RUN":
        shutil.copytree(source.parent, home / "run", dirs_exist_ok=True)
        (home / "run" / source.name).write_bytes(data)
        return "run"
    (home / f"given{source.suffix}").write_bytes(data)
    return f"given{source.suffix}"


def called(line: list[str], home: Path) -> str:
    """Run the command as the entry point does; an answer, or exit 2 with a message, is all it may give."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    here = Path.cwd()
    os.chdir(home)
    sys.argv = ["flare", *line]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    except Finding:
        raise
    except BaseException as error:
        raise Finding(f"{type(error).__name__}: {str(error)[:200]} of {line}") from error
    finally:
        sys.argv = before
        os.chdir(here)
    if code not in (0, 2, 3) or (code == 2 and not err.getvalue().strip()):
        raise Finding(f"exit {code!r} with {err.getvalue()[-200:]!r} of {line}")
    return f"exit {code}"
