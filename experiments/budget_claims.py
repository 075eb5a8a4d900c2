"""What the budget study says of the paper's claims: 10 to 30% suffice, and the covariance contracts."""

from __future__ import annotations

from collections.abc import Sequence

from .budget_case import DETECTORS, SUMS, Case
from .claims import Claim

ROUNDING = 0.999  # a factor of growth that float32 cannot tell from 1
STABLE, USEFUL = 0.02, 0.6  # a change of AUROC that does not count, and the least AUROC of a detector
KEPT = (0.1, 0.3)  # the shares that the paper finds sufficient


def contracting(found: Sequence[Case]) -> list[str]:
    """Where the term with tuned s and δ is smaller with the largest share than with the smallest."""
    return [case.title for case in found if case.growth("tuned") < 1]


def enough(found: Sequence[Case]) -> Claim:
    """Detection by the paper's sums from a tenth, and from three tenths of the parameters on."""
    found = [case for case in found if case.shares[-1] > KEPT[0]]
    kept = [least for least in KEPT if all(case.shares[-1] > least for case in found)]
    judged = {key: [case for case in found if key not in case.doubtful] for key in SUMS}
    change = {
        key: [max((_change(case, key, least) for case in cases), default=float("nan")) for least in kept]
        for key, cases in judged.items()
    }
    useful = [key for key in SUMS if all(case.range(key, KEPT[0])[1] > USEFUL for case in judged[key])]
    stable = [
        (least, key) for key in useful for least, v in zip(kept, change[key], strict=True) if v < STABLE
    ]
    if stable:
        least, key = min(stable)
        verdict = f"holds with a correction: in AUROC, from {100 * least:g}% on, by the {DETECTORS[key]} "
        verdict += f"(a change below {STABLE})"
    elif not useful:
        verdict = "cannot be judged in AUROC"
    else:
        verdict = f"does not hold in AUROC: above {100 * kept[-1]:g}% it still changes by {STABLE} or more"
    blind = [DETECTORS[key] for key in SUMS if key not in useful]
    verdict += "".join(f"; the {name}, detects too little to be judged" for name in blind)
    by_sum = "; ".join(
        f"{DETECTORS[key]} (judged on {' and '.join(case.title for case in judged[key])}): "
        + ", ".join(f"{v:.3f} from {100 * least:g}% on" for least, v in zip(kept, change[key], strict=True))
        for key in SUMS
    )
    others = "; ".join(
        f"{case.title}: " + ", ".join(_shown(case, key) for key in DETECTORS) for case in found
    )
    return Claim(
        "10–30% of the parameters suffice",
        "stable mode coverage at 10–30%",
        f"AUROC. The largest change: {by_sum}. From {100 * KEPT[0]:g}% on, with the scores that are not the "
        f"paper's for comparison: {others}",
        f"{verdict}; mode coverage was not measured",
    )


def _change(case: Case, key: str, least: float) -> float:
    """How much the AUROC of a score changes from a share on."""
    low, high = case.range(key, least)
    return high - low


def _shown(case: Case, key: str) -> str:
    """The range of the AUROC of a score."""
    low, high = case.range(key, KEPT[0])
    return f"{DETECTORS[key]} {low:.3f} to {high:.3f}{case.mark(key)}"


def contraction(found: Sequence[Case]) -> Claim:
    """Whether b²·JΣJᵀ falls as more parameters are kept."""
    fallen, least = contracting(found), min(min(case.least_growth()) for case in found)
    grows = "with a fixed λ it grows in every sample and step, as it must"
    if least < ROUNDING:
        verdict = "holds with a correction: it falls in some samples"
    elif len(fallen) == len(found):
        verdict = f"holds with a correction: {grows}; it contracts if s and δ are tuned for each share"
    elif fallen:
        verdict = f"holds with a correction: {grows}; tuned for each share it contracts on "
        verdict += f"{', '.join(fallen)} alone"
    else:
        verdict = f"does not hold: {grows}; tuned for each share it grows, too"
    return Claim(
        "The covariance b²·JΣJᵀ contracts as more parameters are kept",
        "a figure",
        "from the smallest share to the largest: "
        + "; ".join(
            f"{case.title} × {case.growth('printed'):.3g} with λ = 1e-6, × {case.growth('tuned'):.3g} tuned"
            for case in found
        ),
        verdict,
    )
