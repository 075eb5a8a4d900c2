"""What the loop costs: `flare.sample` against the bare network calls that it makes."""

from __future__ import annotations

import argparse

import torch
from harness import compare

import flare


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"plain sampling of {options.n} against its bare network calls, {options.threads} thread(s)\n")
    print("| model | DDPM steps | ratio |\n|---|---|---|")
    for name in flare.zoo.NAMES:
        model = flare.zoo.load(name)
        net, _ = flare.zoo.build(model.config)
        net.eval()
        x = torch.randn(options.n, *model.shape)
        times = [torch.tensor([t]).expand(options.n) for t in range(model.schedule.T)]

        def bare(net=net, x=x, times=times) -> None:
            with torch.no_grad():
                for t in times:
                    net(x, t)

        def ours(model=model) -> None:
            flare.sample(model.denoiser, model.steps, n=options.n, shape=model.shape)

        print(f"| {name} | {len(times)} | {compare(ours, bare, options.repeats)} |", flush=True)


if __name__ == "__main__":
    main()
