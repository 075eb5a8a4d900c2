"""The results of the leaderboard, `tasks/leaderboard`: `python -m experiments.leaderboard [ENTRY ...]`.

It runs every entry on every task that its file lacks; `python -m tools.leaderboard` writes the page
from the files.
"""

from __future__ import annotations

import sys
import time

import torch

from flare.bench import ENTRIES, find_tasks, run

from .tasks import SETS, TASKS

#: a fit of large images takes minutes, so they come last
LARGE = tuple(study for study, (_, stored_as, _) in SETS.items() if stored_as == "uint8")
SLOW = (
    "verdict",
    "epistemic_distance",
    "influence",
    "expected_residual",
    "llla",
    "gradient_norms",
    "aleatoric",
    "generative",
)


def main() -> None:
    """Run what is missing, quick things first."""
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or sorted(ENTRIES, key=lambda name: name in SLOW)
    directories = sorted(find_tasks(), key=lambda path: path.name in LARGE)
    small = [path for path in directories if path.name not in LARGE]
    for some in (small, directories):
        for name in chosen:
            started = time.time()
            run(ENTRIES[name], some, TASKS / "leaderboard" / f"{name}.json", name=name, progress=False)
            print(f"{name} on {len(some)} tasks: {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
