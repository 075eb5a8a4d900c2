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
    "calibrate": ["FILE", "LABELS", "--out", "kept.npz"],
    "report": ["FILE", "--out", "page.html"],
    "score": ["SCORER", "ARRAY", "--out", "scored.csv"],
    "sample": ["SCORER", "-n", "3", "--steps", "2", "--directions", "2", "--out", "drawn.safetensors"],
    "fit": [
        "fuzz.seeds:model", "--data", "ARRAY", "--structure", "diagonal", "--pairs", "20", "--no-check",
        "--out", "fitted",
    ],
    "check": ["SCORER", "-n", "3", "--draws", "2", "--steps", "2"],
    "bench train": [
        "grid", "--out", "trained", "--steps", "1", "--samples", "20", "--batch-size", "4", "--overwrite",
    ],
}  # fmt: skip
MORE = {
    "filter": ("--p-value", "--by", "--json"),
    "calibrate": ("--risk", "--confidence", "--design", "--json"),
    "report": ("--keep", "--p-value", "--title", "--data", "--json"),
    "score": ("--device", "--model", "--json"),
    "sample": ("--rule", "--score", "--sampler", "--batch-size", "--device", "--model"),
    "fit": (
        "--subset", "--held-out", "--prior-precision", "--scale", "--rank", "--schedule", "--prediction",
        "--weighting",
    ),
    "check": ("--model", "--device"),
    "bench train": ("--learning-rate", "--ema", "--weighting", "--width", "--level-sampling", "--seed"),
}  # fmt: skip
NEEDED = ("-n", "--steps", "--out", "--samples", "bench", "train", "--batch-size", "--pairs")
KINDS = {
    "FILE": ["result", "result", "posterior"], "ARRAY": ["array"], "LABELS": ["labels"], "RUN": ["run"],
    "SCORER": ["scorer"],
}  # fmt: skip


def arguments(chance: Chance, files: dict[str, list[Path]], home: Path) -> list[str]:
    """A command and what follows it: the usual, with words, options and files exchanged."""
    command = chance.choice(list(SMALL))
    line, more = [*command.split(), *SMALL[command]], MORE.get(command, ("--json",))
    for option in chance.sample(more, chance.randrange(min(3, len(more)))):
        line += [option, chance.choice((*WORDS, *KINDS))]
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        place = chance.randrange(len(line))
        match chance.randrange(4):
            case 0:
                del line[place]
            case 1:
                line.insert(place, chance.choice(WORDS))
            case _ if line[place] not in NEEDED:
                line[place] = chance.choice(WORDS)
    return [_given(word, KINDS[word], chance, files, home) if word in KINDS else word for word in line]


def _given(word: str, kinds: list[str], chance: Chance, files: dict[str, list[Path]], home: Path) -> str:
    """A valid file or one that is wrong, as an argument."""
    source = chance.choice(files[chance.choice(kinds)])
    data = source.read_bytes()
    if chance.random() < 0.5:
        data = MUTATORS[source.suffix](data, chance)
    if word in ("RUN", "SCORER"):
        shutil.copytree(source.parent, home / word.lower(), dirs_exist_ok=True)
        (home / word.lower() / source.name).write_bytes(data)
        return word.lower()
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
