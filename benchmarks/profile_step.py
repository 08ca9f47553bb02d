"""Where the time of a training step goes: share of each kind of operation, ours and SpikingJelly's.

python benchmarks/profile_step.py
python benchmarks/profile_step.py --compile     # both under torch.compile
"""

import sys
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from sage_snn.bench.contestants import training_step
from sage_snn.bench.firing import Stated
from sage_snn.bench.measures import LARGE, MIDDLE, SMALL

KINDS = {  # the first that a name holds, in this order
    "dense products": ("convolution", "mkldnn", "addmm", "aten::mm"),  # in ours most are gradients of inputs
    "event-driven products": ("sage_snn::event", "EventMap", "EventConv"),
    "BatchNorm and LIF": ("sage_snn::norm_lif", "NativeNormLIF", "batch_norm"),
    "LIF of the attention": ("sage_snn::lif",),
    "attention products": ("bmm", "sage_snn::mix"),
    "pooling": ("max_pool", "sage_snn::pool"),
    "copies and layouts": ("copy_", "contiguous", "clone", "cat", "fill_", "zero_"),
    "written by the compiler": ("Compiled",),  # what torch.compile made of all the rest, neurons included
}
STEPS = 5


def kind_of(name: str) -> str:
    """The kind of an operation."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "the rest")


def shares(step: Callable[[], None]) -> tuple[float, dict[str, float]]:
    """Milliseconds, and kind -> percent of what operations take themselves; Python between them counts as the rest."""
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            step()
    times: defaultdict[str, float] = defaultdict(float)
    for event in found.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    whole = sum(times.values())
    return whole / STEPS / 1000, {kind: 100 * times[kind] / whole for kind in (*KINDS, "the rest")}


def main() -> None:
    """A line per network and contestant: milliseconds of a step under the profiler, and where they go."""
    for size in map(Stated, (LARGE, MIDDLE, SMALL)):
        for name, build in (("SpikingJelly", size.theirs), ("ours", size.ours)):
            model = torch.compile(build()) if "--compile" in sys.argv else build()
            whole, found = shares(training_step(model, size))  # pyright: ignore[reportArgumentType]
            told = ", ".join(f"{kind} {share:.0f} %" for kind, share in found.items())
            print(f"{size}, {name}, {whole:.0f} ms: {told}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
