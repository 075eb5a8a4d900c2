"""Our own claims on the paper's data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .bench import MIXTURES, NAMES
from .claims import Claim
from .every_method_results import (
    BLIND,
    EXACT,
    SAME,
    Rows,
    bad_count,
    deviation,
    listed,
    mean,
    results,
    values,
)
from .lab import Job
from .methods import BY_REGION, DEFAULT
from .recursion_case import ENOUGH

FREE = ("residual", "denoising error", "last 10 iterates", "last 100 iterates", "neighbors")
MODELS = (
    "LLLA, tangent", "LLLA, main", "LLLA, appendix", "ensemble", "generative uncertainty", "HyperDM",
    "BayesDiff",
)  # fmt: skip
Found = Mapping[str, Rows]


def claims(jobs: Sequence[Job]) -> list[Claim]:
    """The value of the verdict."""
    found = results(jobs)
    return [
        detection(found, "auroc", "hallucinations"),
        detection(found, "auroc_far", "the farthest fifth"),
        closeness(found),
        price(found),
        _modes(found),
    ]


def detection(found: Found, key: str, what: str) -> Claim:
    """The verdict against every baseline; AUROCs that rest on a few bad samples are left out."""
    texts: dict[str, list[str]] = {"ahead": [], "level": [], "behind": []}
    few = []
    for name in NAMES:
        rows = found[name]
        rivals = {m: mean(rows, m, key) for m in FREE + MODELS if values(rows, m, key)}
        if not values(rows, DEFAULT, key) or not rivals:
            continue
        if key == "auroc" and bad_count(name, rows) < ENOUGH:
            few.append(f"{name} is not judged (bad samples: {bad_count(name, rows)})")
            continue
        rival = max(rivals, key=lambda m: rivals[m])
        mine, error = mean(rows, DEFAULT, key), max(deviation(rows, m, key) for m in (DEFAULT, rival))
        place = (
            "level" if abs(mine - rivals[rival]) <= error else "ahead" if mine > rivals[rival] else "behind"
        )
        texts[place].append(f"{name} {mine:.3f} against {rivals[rival]:.3f} ({rival})")
    counts = listed(f"{place} on {len(names)}" for place, names in texts.items())
    return Claim(
        f"Ours: the verdict is ahead of every baseline in AUROC ({what})",
        "–",
        "; ".join([*(f"{place}: {listed(names)}" for place, names in texts.items() if names), *few])
        + ". Level: within one standard deviation",
        f"{'does not hold' if texts['level'] or texts['behind'] else 'holds'}: {counts}",
    )


def closeness(found: Found) -> Claim:
    """The verdict against the residual and against chance, all with the same filter."""
    rivals = {SAME: "the residual", BLIND: "chance"}
    said = []
    ahead: dict[str, list[str]] = {m: [] for m in rivals}
    for name in NAMES:
        rows = found[name]
        far = {m: 1000 * mean(rows, m, "energy_distance") for m in (BY_REGION, *rivals)}
        sd = {m: 1000 * deviation(rows, m, "energy_distance") for m in far}
        said.append(
            f"{name} {far[BY_REGION]:.1f} ± {sd[BY_REGION]:.1f} against "
            + listed(f"{far[m]:.1f} ± {sd[m]:.1f} ({text})" for m, text in rivals.items())
        )
        for m in rivals:
            # an estimate below 0 is no closer than 0
            if max(far[m], 0.0) - max(far[BY_REGION], 0.0) > max(sd[m], sd[BY_REGION]):
                ahead[m].append(name)
    where = listed(f"than {text} on {listed(ahead[m]) or 'no set'}" for m, text in rivals.items())
    everywhere = all(len(names) == len(NAMES) for names in ahead.values())
    return Claim(
        "Ours: of halves that are drawn region by region, the verdict's is closer to held-out data than the "
        "residual's and than a random one (energy distance × 1000)",
        "–",
        "; ".join(said) + ". Estimates below 0 count as 0, differences within one standard deviation as ties",
        "holds" if everywhere else f"does not hold: it is closer {where}",
    )


def price(found: Found) -> Claim:
    """Bad samples before and after the filter by region, compared with ranking alone and the residual."""
    kinds = (BY_REGION, DEFAULT, SAME)
    rates = {n: [100 * mean(found[n], m, "hallucination_rate") for m in kinds] for n in NAMES}
    before = {n: 100 * mean(found[n], "oracle", "rate_before") for n in NAMES}
    fails = [n for n in NAMES if rates[n][0] >= before[n] > 0]
    worse = [n for n in NAMES if n not in fails and rates[n][0] > rates[n][1] + 0.01]
    more = f"on {listed(worse)} it keeps more of them than ranking alone"
    if fails:
        verdict = f"does not hold on {listed(fails)}" + (f"; {more}" if worse else "")
    else:
        verdict = f"holds with a correction: {more}" if worse else "holds"
    return Claim(
        "Ours: the verdict, region by region, removes bad samples",
        "–",
        "; ".join(
            f"{n} {before[n]:.2f}% before, {a:.2f}% after (by rank alone {b:.2f}%, by the residual, by "
            f"region, {c:.2f}%)"
            for n, (a, b, c) in rates.items()
        ),
        verdict,
    )


def _modes(found: Found) -> Claim:
    change = {n: mean(found[n], BY_REGION, "mode_change") for n in MIXTURES}
    plain = {n: mean(found[n], EXACT, "mode_change") for n in MIXTURES}
    return Claim(
        "Ours: mode shares stay within 10 points after the filter",
        "–",
        "; ".join(f"{n} {change[n]:.1f} points (by trace alone {plain[n]:.1f})" for n in change),
        "holds"
        if max(change.values()) <= 10
        else f"does not hold on {listed(n for n in change if change[n] > 10)}",
    )
