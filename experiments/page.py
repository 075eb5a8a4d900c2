"""docs/reproduction.md: the answer on one page, from the runs of Table 1 and the files of docs/evidence.

The text is `reproduction_template.md`; every figure in it is filled in here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from tools.document import read_tables, table, write_page

from . import evidence, lab, table1
from .claims import Claim
from .common import typeset, versions
from .lab import Job
from .models import model_of
from .paper_rule import weigh
from .powered import FULL, QUICK
from .table1 import UNTESTABLE

TEMPLATE = Path(__file__).parent / "reproduction_template.md"
ORDER = (
    "table1", "cross_term", "theorem1", "budget", "four_way", "gallery", "data_size", "missing_mode"
)  # fmt: skip
OURS = "Ours"  # how a claim begins that the paper does not make


def write(jobs: Sequence[Job], docs: Path, quick: bool) -> Path:
    """Write the page into `docs`; its path."""
    found = table1.results(jobs)
    text = _quick(found) if quick else _full(found, docs)
    path = docs / "reproduction.md"
    write_page(path, typeset(text.strip()) + "\n")
    return path


def _quick(found: Mapping[str, table1.Runs]) -> str:
    note = f"*Quick: {QUICK['n']} samples, {min(len(r.found) for r in found.values())} seeds. No verdict.*"
    parts = [note, table1.gap_table(found), note, table1.auroc_table(found)]
    return "\n\n".join(["# The paper, quickly", "All tables are in evidence/.", *parts])


def _full(found: Mapping[str, table1.Runs], docs: Path) -> str:
    claims = {name: paper_claims(name, docs) for name in ORDER}
    if not claims["table1"]:
        place, command = evidence.path_of("table1", docs), "python -m experiments.reproduce --only table1"
        raise ValueError(f"{place} has no claims yet; run `{command}` first.")
    every = [claim for own in claims.values() for claim in own]
    model = model_of("sines")
    shares = {name: w / w.sum() for name, w in weigh(model.denoiser, model.sampler("ddpm")).items()}
    pictures = docs / "images" / "reproduction"
    draw_weights(shares, pictures / "weights.png")
    table1.draw_gaps(found, pictures / "gaps.svg")
    table1.draw_aurocs(found, pictures / "aurocs.svg")
    share = f"{100 * float(shares['main'][0]):.2f}%"
    return TEMPLATE.read_text(encoding="utf-8").format(
        answer=answer(claims["table1"], every, share),
        size=table1.brief(found, FULL),
        verdict_table=table1.verdict_table(found),
        oracle=table1.oracle(found),
        share=share,
        authors=describe_authors(docs),
        total=len(every),
        claims=claim_table(claims),
        versions=versions(lab.MEASURES),
    )


def describe_authors(docs: Path) -> str:
    """What the choices of the authors' code change, in a sentence per data set that has bad samples."""
    [rows, *_] = read_tables(evidence.path_of("authors", docs).read_text(encoding="utf-8"))
    kinds = [name for name in rows[0] if name.endswith("bad samples")]
    said = []
    for kind in kinds:
        auroc = {row["method, coefficients"]: row[kind] for row in rows}
        said.append(
            f"On {kind.partition(',')[0]}, its weighting finds bad samples with AUROC "
            f"{auroc['FLARE, released']}. The last layer alone reaches {auroc['LLLA, released']}, and "
            f"BayesDiff {auroc['BayesDiff']}."
        )
    return " ".join(said)


def paper_claims(name: str, docs: Path) -> list[Claim]:
    """The claims of the paper in an experiment's file."""
    return [claim for claim in evidence.read_claims(name, docs) if not claim.claim.startswith(OURS)]


def claim_table(claims: Mapping[str, Sequence[Claim]]) -> str:
    """A short line per claim."""
    rows = [
        [shorten(c.claim), f"[{c.short}](evidence/{name}.md)", shorten(c.rest.lstrip(":;, "))]
        for name, own in claims.items()
        for c in own
    ]
    return table(["the paper says", "our result", "measured"], rows)


def shorten(text: str) -> str:
    """The first clause of a text, without what it has in parentheses.

    >>> shorten("AUROC 0.98 (DDPM 0.99; as printed); the rest is elsewhere")
    'AUROC 0.98'
    """
    return re.split(r"; |, so ", re.sub(r" \([^()]*\)", "", text))[0]


def answer(first: Sequence[Claim], every: Sequence[Claim], share: str) -> str:
    """Five sentences: Table 1, Figure 1, why, the other claims, and what to use."""
    beats = next(c for c in first if c.claim.startswith("Table 1"))
    figure1 = next(c for c in first if c.claim.startswith("Figure 1"))
    words = {"holds": "reproduces", "does not hold": "does not reproduce", UNTESTABLE: "cannot be tested"}
    said = [
        f"**{c.claim.partition(':')[0]} {words.get(c.short, 'reproduces in part')}**: {about}"
        f"{shorten(c.rest.lstrip(':;, '))}{end}."
        for c, about, end in (
            (beats, "the filter of the paper's method is ", ""),
            (
                figure1,
                "the method finds bad samples with ",
                ", where AUROC is the probability that a bad sample scores higher than a good one, and 0.5 "
                "is chance",
            ),
        )
    ]
    return " ".join([
        *said,
        f"The reason is the formula: Eq. 12 puts {share} of the score on the first sampling step, before "
        "the sample has any shape.",
        count(every),
        "To find bad samples, use the library's verdict instead ([Does it work?](real-data.md)).",
    ])  # fmt: skip


def count(claims: Sequence[Claim]) -> str:
    """How many claims hold, in a sentence."""
    words = {
        "holds": "hold", "holds with a correction": "hold with a correction", "holds in part": "hold in part",
        "does not hold": "do not hold", "": "cannot be tested",
    }  # fmt: skip
    kinds = [claim.kind for claim in claims]
    parts = [f"{kinds.count(kind)} {said}" for kind, said in words.items() if kind in kinds]
    return f"Of {len(claims)} claims, {', '.join(parts[:-1])} and {parts[-1]}."


def draw_weights(shares: Mapping[str, Tensor], path: Path) -> None:
    """The cumulative share of the steps, by coefficients."""
    figure, ax = plt.subplots(figsize=(5, 2.6))
    for name, share in shares.items():
        steps = torch.arange(len(share), 0, -1)
        ax.step(steps, share.cumsum(0), where="post", label=table1.COEFFICIENTS[name])
    ax.set(xlabel="t", ylabel="share of the score", xlim=(len(share) + 5, 0), ylim=(-0.02, 1.05))
    ax.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
