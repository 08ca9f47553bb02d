"""The measurements, each a list of rows for the table."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..control import Block, Source, Tap, find_blocks, reading
from ..deploy import accelerate, fuse
from ..kernels import switched_off
from ..kernels.events import dense_products
from ..policies import SAGE
from ..signals import Constant, HeadEntropy, HeadStatistics, Signal
from .contestants import Contest, Size, Unit, inference, settled, training_step, unit_step
from .resnet import ResNetSize
from .timing import Timing, alternate

SMALL, MIDDLE, LARGE = Size(64, 8, 32), Size(192, 12, 16), Size(384, 12, 8)
RESNET = ResNetSize(0.25, 32)
UNITS = (Unit(4, 8, 192, 1024), Unit(4, 8, 384, 64))
RECORDED = (0.25, 0.5, 1.0, 2.0)  # temperatures of the studies


@dataclass(frozen=True)
class Row:
    """One contestant in one measurement; the ratio says how many times the peer's cost it saves."""

    measure: str
    size: str
    contestant: str
    minimum: float
    median: float
    unit: str
    ratio: float | None
    note: str = ""


def training(
    sizes: tuple[Contest, ...], repetitions: int, *, measure: str = "training step", compiled: bool = False
) -> Iterator[Row]:
    """A training step: SpikingJelly, also channels last and accelerated; ours, dense, without kernels; compiled."""
    for size in sizes:
        ours, twin = size.ours(), training_step(size.ours(), size)
        contestants = {
            "SpikingJelly": training_step(size.theirs(), size),
            "SpikingJelly, channels last": training_step(channels_last(size.theirs()), size),
            "SpikingJelly, accelerated": training_step(accelerate(size.theirs()), size),
            "ours": training_step(ours, size),
            "ours, dense products": inside(dense_products, training_step(size.ours(), size)),
            "ours, torch twin": inside(switched_off, twin),
        }
        if compiled:
            models = {"SpikingJelly": size.theirs(), "ours": size.ours()}
            contestants |= compiled_steps(models, size, "torch.compile")
        yield from rows(measure, str(size), alternate(contestants, repetitions))


def units(units: tuple[Unit, ...], repetitions: int) -> Iterator[Row]:
    """Batch normalisation and LIF alone, forward and backward."""
    for unit in units:
        contestants = {
            "SpikingJelly": unit_step(unit.theirs(), unit),
            "ours": unit_step(unit.ours(), unit),
            "ours, channels last": unit_step(unit.ours(), unit, channels_last=True),
            "ours, torch twin": inside(switched_off, unit_step(unit.ours(), unit)),
        }
        yield from rows("BatchNorm and LIF", str(unit), alternate(contestants, repetitions, calls=10))


def overhead(sizes: tuple[Size, ...], repetitions: int) -> Iterator[Row]:
    """SAGE, exact and at every step: the statistic, the controller, and the whole as a share of the step.

    Beside them what the studies record: entropy and Gini impurity at four temperatures.
    """
    for size in sizes:
        model = size.ours()
        spikes = _spikes_of(model, size)
        alone = {
            "statistic": _statistic(spikes, HeadEntropy(), 1),
            "controller": _controller(size),
            "recording, four temperatures": _statistic(spikes, HeadStatistics(RECORDED), 2 * len(RECORDED)),
        }
        with SAGE(model, warmup_steps=0) as sage:
            plain, step = training_step(model, size), training_step(model, size, sage.step)
            step()
            parts = {"plain step": inside(sage.paused, plain), "step with SAGE": step}
            times = alternate(parts | alone, repetitions)
        whole = times["plain step"].minimum
        for name in alone:
            share = f"{100 * times[name].minimum / whole:.2f} % of the step"
            yield Row("SAGE overhead", str(size), name, times[name].minimum, times[name].median, "s", None, share)
        extra = times["step with SAGE"].minus(times["plain step"])
        share = f"{100 * extra / whole:+.2f} % of the step, median difference"
        yield Row("SAGE overhead", str(size), "whole", extra, extra, "s", None, share)


def _spikes_of(model: nn.Module, size: Size) -> list[tuple[Source, tuple[Any, ...]]]:
    """Query and key of every block in one pass, as the taps see them."""
    spikes: list[tuple[Source, tuple[Any, ...]]] = []
    sources = [source for block in find_blocks(model) for source in block.sources]
    with reading((source, lambda *read, source=source: spikes.append((source, read))) for source in sources):
        inference(model, size)()
    return spikes


def _statistic(spikes: list[tuple[Source, tuple[Any, ...]]], signal: Signal, times: int) -> Callable[[], None]:
    """Reads the signal of all blocks from spikes that are there already."""
    taps = [Tap(source, signal, torch.get_default_device(), times) for source, _ in spikes]
    for tap in taps:
        tap.remove()  # timed alone, so it must not listen to the steps

    def read() -> None:
        for tap, (_, arguments) in zip(taps, spikes, strict=True):
            tap.add(*arguments)

    return read


def _controller(size: Size) -> Callable[[], None]:
    """From readings to slopes, where reading costs nothing."""
    model, nothing = size.ours(), torch.zeros(1, 1, size.heads, 1, 1)
    blocks = [Block(b.neurons, heads=size.heads, read=lambda _: (nothing, nothing)) for b in find_blocks(model)]
    return SAGE(model, warmup_steps=0, blocks=blocks, signal=Constant()).step


def inferring(sizes: tuple[Size, ...], repetitions: int) -> Iterator[Row]:
    """A forward pass in eval mode: SpikingJelly in both layouts, ours as trained, and both deployment forms."""
    for size in sizes:
        ours = settled(size.ours(), size)
        contestants = {
            "SpikingJelly": inference(settled(size.theirs(), size), size),
            "SpikingJelly, channels last": inference(channels_last(settled(size.theirs(), size)), size),
            "ours": inference(ours, size),
            "ours, fused": inference(fuse(ours), size),
            **({"ours, fused, int8": inference(fuse(ours, "int8"), size)} if _is_cpu() else {}),
        }
        for row in rows("inference", str(size), alternate(contestants, repetitions)):
            yield Row(**{**vars(row), "note": f"{size.batch / row.minimum:.1f} images/s"})


def _is_cpu() -> bool:
    return torch.get_default_device().type == "cpu"


def memory(size: Size | ResNetSize = LARGE, small: int = 1, large: int = 16) -> Iterator[Row]:
    """How peak resident memory of a training step grows from a small batch to a large one, each in its own process."""
    growth = {}
    for kind in ("theirs", "ours"):
        peaks = [_peak(kind, replace(size, batch=batch)) for batch in (small, large)]
        growth[kind] = peaks[1] - peaks[0]
    label = f"{size.network}, batch {small} to {large}"
    for kind, name in (("theirs", "SpikingJelly"), ("ours", "ours")):
        share = f"{growth[kind] / growth['theirs']:.2f} of SpikingJelly's"
        ratio = growth["theirs"] / growth[kind]
        yield Row("peak memory growth", label, name, growth[kind], growth[kind], "MB", ratio, share)


def growth(repetitions: int) -> Iterator[Row]:
    """How the cost of a training step grows with T, tokens, batch and width."""
    curves = {
        "T": [Size(64, 8, 8, depth=2, time_steps=t) for t in (1, 2, 4, 8, 12)],
        "tokens": [Size(64, 8, 4, depth=2, image=i) for i in (16, 32, 40, 56)],
        "batch": [Size(64, 8, b, depth=2) for b in (1, 4, 16, 64)],
        "width": [Size(d, 8, 8, depth=2) for d in (32, 64, 128, 256)],
    }
    for name, sizes in curves.items():
        for size in sizes:
            ours, controlled = size.ours(), size.ours()
            sage = SAGE(controlled, warmup_steps=0)
            contestants = {
                "SpikingJelly": training_step(size.theirs(), size),
                "ours": training_step(ours, size),
                "ours with SAGE": training_step(controlled, size, sage.step),
            }
            yield from rows(f"growth with {name}", str(size), alternate(contestants, repetitions))
            sage.remove()


def channels_last(model: nn.Module) -> nn.Module:
    """The layout in which ours computes."""
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def rows(measure: str, size: str, times: dict[str, Timing]) -> Iterator[Row]:
    """A row per contestant, beside SpikingJelly."""
    peer = times["SpikingJelly"].minimum
    for name, timing in times.items():
        yield Row(measure, size, name, timing.minimum, timing.median, "s", peer / timing.minimum)


def compiled_steps(
    models: dict[str, nn.Module], size: Contest, way: str, *, half: bool = False, **options: Any
) -> dict[str, Callable[[], None]]:
    """Steps under torch.compile; a model with which that fails is left out, and named."""
    steps: dict[str, Callable[[], None]] = {}
    for name, model in models.items():
        step = training_step(torch.compile(model, **options), size, half=half)  # type: ignore[arg-type]
        try:
            step()
        except Exception as error:  # whatever the compiler trips over
            print(f"{way} fails with {name}, {size}, so it does not take part: {type(error).__name__}")
        else:
            steps[f"{name}, {way}"] = step
    return steps


def inside(context: Callable[[], Any], run: Callable[[], None]) -> Callable[[], None]:
    """A contestant that runs in a context of its own."""

    def run_inside() -> None:
        with context():
            run()

    return run_inside


def _peak(kind: str, size: Size | ResNetSize) -> float:
    """Peak resident memory in MB of two training steps in a fresh process."""
    code = (
        "from pathlib import Path\n"
        "from sage_snn.bench.contestants import training_step\n"
        f"from {type(size).__module__} import {type(size).__name__}\n"
        f"size = {size!r}\nstep = training_step(size.{kind}(), size)\nstep(); step()\n"
        # Not ru_maxrss: a new process inherits that from the one that started it.
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]) / 1024
