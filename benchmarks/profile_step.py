"""Where the time of a training step goes: share of each kind of operation, ours and SpikingJelly's.

python benchmarks/profile_step.py
"""

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
}
STEPS = 5


def kind_of(name: str) -> str:
    """The kind of an operation."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "the rest")


def shares(step: Callable[[], None]) -> dict[str, float]:
    """Kind -> percent of the time spent in operations themselves; Python between them counts as the rest."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            step()
    times: defaultdict[str, float] = defaultdict(float)
    for event in found.key_averages():
        times[kind_of(event.key)] += event.self_cpu_time_total
    return {kind: 100 * times[kind] / sum(times.values()) for kind in (*KINDS, "the rest")}


def main() -> None:
    """A line per network and contestant."""
    for size in map(Stated, (LARGE, MIDDLE, SMALL)):
        for name, build in (("SpikingJelly", size.theirs), ("ours", size.ours)):
            found = shares(training_step(build(), size))
            print(f"{size}, {name}: " + ", ".join(f"{kind} {share:.0f} %" for kind, share in found.items()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
