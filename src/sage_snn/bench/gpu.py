"""The same measurements where a GPU is: batches that fill it, mixed precision, and every way to make the peers fast."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..kernels import switched_off
from ..policies import SAGE
from . import measures
from .contestants import Contest, Size, Unit, training_step
from .firing import Stated
from .measures import Row
from .timing import alternate

SIZES = (Size(384, 12, 128), Size(384, 12, 8), Size(64, 8, 128))
UNITS = (Unit(4, 128, 192, 1024), Unit(4, 128, 384, 64))
# torch.compile by itself, and with CUDA graphs, which take the launches away.
MODES: dict[str, dict[str, Any]] = {"torch.compile": {}, "CUDA graphs": {"mode": "reduce-overhead"}}


def plan(quick: bool, repetitions: int) -> Iterator[tuple[str, Iterator[Row]]]:
    """Name and rows of each measurement."""
    sizes = [Stated(size) for size in (SIZES[:1] if quick else SIZES)]
    yield "training step", training(sizes, repetitions, half=False)
    yield "training step, bfloat16", training(sizes, repetitions, half=True)
    yield "BatchNorm and LIF", measures.units(UNITS, repetitions)
    yield "SAGE overhead", measures.overhead(sizes, 2 * repetitions + 1)
    yield "inference", measures.inferring(sizes, repetitions)
    yield "memory", memory(sizes)


def training(sizes: Iterable[Contest], repetitions: int, *, half: bool) -> Iterator[Row]:
    """SpikingJelly by the fastest path that it finds itself, and ours, with SAGE too; compiled and as graphs."""
    for size in sizes:
        controlled = size.ours()
        with SAGE(controlled, warmup_steps=0) as sage:
            steps = {
                "SpikingJelly": training_step(size.theirs(), size, half=half),
                "SpikingJelly, channels last": training_step(measures.channels_last(size.theirs()), size, half=half),
                "ours": training_step(size.ours(), size, half=half),
                "ours with SAGE": training_step(controlled, size, sage.step, half=half),
                "ours, torch twin": measures.inside(switched_off, training_step(size.ours(), size, half=half)),
            }
            for name, options in MODES.items():
                models = {"SpikingJelly": size.theirs(), "ours": size.ours()}
                steps |= measures.compiled_steps(models, size, name, half=half, **options)
            times = alternate(steps, repetitions, calls=5)
        yield from measures.rows(f"training step{', bfloat16' if half else ''}", str(size), times)


def memory(sizes: Iterable[Contest]) -> Iterator[Row]:
    """Peak of what torch allocated on the device in a training step, above what the weights take."""
    for size in sizes:
        peaks = {"SpikingJelly": _peak(size.theirs, size), "ours": _peak(size.ours, size)}
        for name, peak in peaks.items():
            share = f"{peak / peaks['SpikingJelly']:.2f} of SpikingJelly's"
            ratio = peaks["SpikingJelly"] / peak
            yield Row("peak memory of a step", str(size), name, peak, peak, "MB", ratio, share)


def _peak(build: Callable[[], nn.Module], size: Contest) -> float:
    step = training_step(build(), size)
    step()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    step()
    return (torch.accelerator.max_memory_allocated() - before) / 2**20
