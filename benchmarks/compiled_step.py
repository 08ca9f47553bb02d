"""A training step with and without torch.compile, ours and SpikingJelly's, in turns; each size in a process of its own.

python benchmarks/compiled_step.py 64|192|384
"""

import sys
from statistics import median
from time import perf_counter

import torch

from sage_snn.bench.contestants import training_step
from sage_snn.bench.firing import Stated
from sage_snn.bench.measures import LARGE, MIDDLE, SMALL
from sage_snn.kernels.memory import keep_freed_memory

REPETITIONS = 9


def main(width: str) -> None:
    """Print minimum and median of every contestant."""
    size = Stated({str(size.dim): size for size in (SMALL, MIDDLE, LARGE)}[width])
    keep_freed_memory()
    models = {
        "SpikingJelly": size.theirs(),
        "ours": size.ours(),
        "SpikingJelly, torch.compile": torch.compile(size.theirs()),
        "ours, torch.compile": torch.compile(size.ours()),
    }
    steps = {name: training_step(model, size) for name, model in models.items()}  # pyright: ignore[reportArgumentType]
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPETITIONS):
        for name, step in steps.items():
            started = perf_counter()
            step()
            times[name].append(1000 * (perf_counter() - started))
    for name, found in times.items():
        print(f"{size}: {name}: minimum {min(found):.0f} ms, median {median(found):.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1])
