"""What a scored sample costs: `flare.sample` with 0, 1, 4 and 16 directions against bare network calls."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile

from tools.document import table

from .harness import command, compare, measure, spearman
from .networks import Case, shipped, unet

DIRECTIONS = (1, 4, 16)
LARGE = 5e-3  # seconds of a call from which on the network and not the bookkeeping sets the cost
UNET_TARGET = 1.2  # calls per direction, with 16
TARGETS = {True: {4: 1.5, 16: 1.4}, False: {4: 2.0, 16: 2.0}}  # the same of MLPs by secants: large, small
EXACT_TARGET = 2.3  # calls per direction, on MLPs with 16 directions
PLAIN_TARGET = 1.15
RANK_TARGET = 0.999
MLP_EXACT = 1000  # samples: exact derivatives are timed on MLPs of this batch


def section(quick: bool = False) -> str:
    """Measure and write it down."""
    repeats, steps = (2, 3) if quick else (3, 50)
    cases = [shipped(name, 100 if quick else MLP_EXACT, steps) for name in ("grid", "chirp")]
    if not quick:
        cases.append(shipped("chirp", 4000, steps))
    cases.append(unet(n=2, steps=2) if quick else unet(n=8, steps=4))
    rows, verdicts = [], []
    for case in cases:
        added, said = _measure(case, repeats)
        rows += added
        verdicts += said
    head = ("network", "samples", "a call", "what", "times the bare calls", "calls per direction", "Spearman")
    return (
        f"## Scoring\n\n`flare.sample` (DDIM, {steps} steps; the UNet {len(cases[-1].steps)}) and the bare "
        "network calls that plain sampling makes, in "
        f"turns, in CPU time on one thread; the ratio is the median of {repeats} turns, with the least "
        "and the largest. Calls per direction are that ratio divided by the number of directions, "
        "everything included: the trained network's own call, noise, sampler and score (the trace). "
        "Spearman is that of the trace against exact derivatives of a float64 copy of the network along the "
        f"same directions.\n\n{table(head, rows)}\n\n"
        + "\n".join(f"- {line}" for line in verdicts)
        + f"\n\nWhere the time goes on {cases[1].name}, as shares of all operations:\n\n"
        f"{_profile(cases[1])}\n\nA call is half matrix products. A secant is that call in float64. An exact "
        "derivative has two products per direction, but torch differentiates a layer norm by a dozen "
        "passes over all directions at once, and adds up products that lie in memory in two orders: "
        "`add` and `mul` outweigh the products. Compiled, those passes are one; compiling, once, is not in "
        "the ratio. Exact and compiled derivatives in float32 follow a float32 trajectory: samples whose x̂0 "
        "lies at the edge of the clip go another way there, and that, not the derivative, is what their "
        "Spearman shows."
    )


def _measure(case: Case, repeats: int) -> tuple[list[list[object]], list[str]]:
    bare, name = case.bare(), f"{case.name}, {case.n}"
    plain = compare(case.plain, bare, repeats)
    call = plain.seconds[1] / len(case.steps)
    about = [case.name, f"{case.n:,}", f"{call * 1e3:.1f} ms"]
    rows: list[list[object]] = [[*about, "plain", plain.short, "", ""]]
    verdicts = [_verdict(f"{name}: plain sampling", plain.median, PLAIN_TARGET, "times the bare calls")]
    for count in DIRECTIONS:
        scores = {}

        def run(derivative: str, count: int = count, scores: dict[str, object] = scores) -> None:
            options = {"directions": count, "derivative": derivative, "score": "trace"}
            scores[derivative] = case.sample(**options).score

        ratio = compare(lambda run=run: run("secant"), bare, repeats)
        exact, first = {}, 0.0
        if count < max(DIRECTIONS) or case.n == MLP_EXACT:
            truth = case.in_float64().sample(directions=count, derivative="exact", score="trace").score
        else:
            truth = None
        if count == max(DIRECTIONS) and case.n == MLP_EXACT:
            exact["exact"] = compare(lambda run=run: run("exact"), bare, repeats)
            first = measure(lambda run=run: run("compiled"))[1]
            exact["compiled"] = compare(lambda run=run: run("compiled"), bare, repeats)
        rank = "" if truth is None else f"{spearman(scores['secant'], truth):.5f}"
        rows.append([*about, f"{count} by secants", ratio.short, f"{ratio.median / count:.2f}", rank])
        target = TARGETS[call > LARGE].get(count)
        if count == max(DIRECTIONS) and case.name == "UNet2DModel":
            target = UNET_TARGET
        if target is not None:
            verdicts.append(
                _verdict(f"{name}: {count} by secants", ratio.median / count, target, "calls per direction")
            )
        if rank and float(rank) < RANK_TARGET:
            verdicts.append(f"{name}: {count} by secants, Spearman {rank}, target {RANK_TARGET}: **missed**")
        for way, found in exact.items():
            each, rank = found.median / count, spearman(scores[way], truth)
            rows.append([*about, f"{count} {way}", found.short, f"{each:.2f}", f"{rank:.5f}"])
            verdicts.append(_verdict(f"{name}: {count} {way}", each, EXACT_TARGET, "calls per direction"))
        if exact:
            more = first - exact["compiled"].seconds[0]
            said = f"compiling takes {more:.0f} s of the processor where torch kept its kernels"
            verdicts.append(f"{name}: {said}")
    return rows, verdicts


def _profile(case: Case) -> str:
    """Where the time goes: the largest shares of the operations themselves."""
    runs = {
        "Bare calls": case.bare(),
        "Plain sampling": case.plain,
        "16 directions by secants": lambda: case.sample(directions=16, derivative="secant", score="trace"),
        "16 exact directions": lambda: case.sample(directions=16, derivative="exact", score="trace"),
        "16 compiled": lambda: case.sample(directions=16, derivative="compiled", score="trace"),
    }
    lines = []
    for name, run in runs.items():
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            run()
        spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
        total = sum(spent.values())
        first = sorted(spent, key=spent.__getitem__, reverse=True)[:6]
        shares = ", ".join(f"{_short(key)} {spent[key] / total:.0%}" for key in first)
        lines.append(f"- {name}: {shares}")
    return "\n".join(lines)


def _short(key: str) -> str:
    """The name of an operation; a compiled graph is named by a hash."""
    return "compiled code" if "CompiledFxGraph" in key else key.removeprefix("aten::")


def _verdict(what: str, value: float, target: float, unit: str) -> str:
    word = "met" if value <= target else "**missed**"
    return f"{what}: {value:.2f} {unit}, target {target}: {word}"


if __name__ == "__main__":
    command("scoring", __doc__, section)
