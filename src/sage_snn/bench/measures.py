"""The measurements, each a list of rows for the table."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..control import Block, Source, Tap, find_blocks, reading
from ..deploy import accelerate, fuse
from ..kernels import switched_off
from ..kernels.events import dense_products
from ..policies import SAGE
from ..signals import Constant, HeadEntropy, HeadStatistics, Signal
from .contestants import Contest, ResNetSize, Size, Unit, inference, training_step, unit_step
from .firing import Stated, rates_of
from .peers import peers
from .timing import Timing, alternate

SMALL, MIDDLE, LARGE = Size(64, 8, 32), Size(192, 12, 16), Size(384, 12, 8)
RESNET = ResNetSize(0.25, 32)
UNITS = (Unit(4, 8, 192, 1024), Unit(4, 8, 384, 64))
RECORDED = (0.25, 0.5, 1.0, 2.0)  # temperatures of the studies


@dataclass(frozen=True)
class Row:
    """One contestant in one measurement; the ratio says how many times the peer's cost it saves.

    `rates`: how often the parts of our network fired, where it was measured.
    """

    measure: str
    size: str
    contestant: str
    minimum: float
    median: float
    unit: str
    ratio: float | None
    note: str = ""
    rates: dict[str, float] = field(default_factory=dict[str, float])


def training(
    sizes: Iterable[Contest], repetitions: int, *, measure: str = "training step", compiled: bool = False
) -> Iterator[Row]:
    """A training step: SpikingJelly, also channels last and accelerated; ours, dense, without kernels; compiled."""
    for size in sizes:
        models = _in_both_layouts(size.ours()) | {
            "SpikingJelly, accelerated": accelerate(channels_last(size.theirs())),
            "ours": size.ours(),
        }
        contestants = {name: training_step(model, size) for name, model in models.items()} | {
            "ours, dense products": inside(dense_products, training_step(size.ours(), size)),
            "ours, torch twin": inside(switched_off, training_step(size.ours(), size)),
        }
        if compiled:
            models = {"SpikingJelly": size.theirs(), "ours": size.ours()}
            contestants |= compiled_steps(models, size, "torch.compile")
        rates = rates_of(size.ours().train(), size.data()[0])
        yield from rows(measure, str(size), alternate(contestants, repetitions), rates)


def _in_both_layouts(ours: nn.Module) -> dict[str, nn.Module]:
    """SpikingJelly's networks with the weights of ours, in the order of the axes and with channels last."""
    makers = peers(ours)
    in_order = {name: make() for name, make in makers.items()}
    return in_order | {f"{name}, channels last": channels_last(make()) for name, make in makers.items()}


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


def overhead(sizes: Iterable[Contest], repetitions: int) -> Iterator[Row]:
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
        whole, rates = times["plain step"].minimum, rates_of(size.ours().train(), size.data()[0])
        for name in alone:
            share, timing = f"{100 * times[name].minimum / whole:.2f} % of the step", times[name]
            yield Row("SAGE overhead", str(size), name, timing.minimum, timing.median, "s", None, share, rates)
        extra = times["step with SAGE"].minus(times["plain step"])
        share = f"{100 * extra / whole:+.2f} % of the step, median difference"
        yield Row("SAGE overhead", str(size), "whole", extra, extra, "s", None, share, rates)


def _spikes_of(model: nn.Module, size: Contest) -> list[tuple[Source, tuple[Any, ...]]]:
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


def _controller(size: Contest) -> Callable[[], None]:
    """From readings to slopes, where reading costs nothing."""
    model = size.ours()
    found = find_blocks(model)
    (heads,) = {source.width for block in found for source in block.sources}
    nothing = torch.zeros(1, 1, heads, 1, 1)
    blocks = [Block(b.neurons, heads=heads, read=lambda _: (nothing, nothing)) for b in found]
    return SAGE(model, warmup_steps=0, blocks=blocks, signal=Constant()).step


def inferring(sizes: Iterable[Contest], repetitions: int) -> Iterator[Row]:
    """A forward pass in eval mode: SpikingJelly in both layouts, ours as trained, and both deployment forms."""
    for size in sizes:
        ours = size.ours().eval()
        models = _in_both_layouts(ours) | {"ours": ours, "ours, fused": fuse(ours)}
        if _is_cpu():
            models["ours, fused, int8"] = fuse(ours, "int8")
        contestants = {name: inference(model, size) for name, model in models.items()}
        rates = rates_of(ours, size.data()[0])
        for row in rows("inference", str(size), alternate(contestants, repetitions), rates):
            yield replace(row, note=f"{size.batch / row.minimum:.1f} images/s" + (row.note and f"; {row.note}"))


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
            stated = Stated(size)
            ours, controlled = stated.ours(), stated.ours()
            sage = SAGE(controlled, warmup_steps=0)
            contestants = {
                "SpikingJelly": training_step(stated.theirs(), size),
                "ours": training_step(ours, size),
                "ours with SAGE": training_step(controlled, size, sage.step),
            }
            rates = rates_of(ours, size.data()[0])
            yield from rows(f"growth with {name}", str(size), alternate(contestants, repetitions), rates)
            sage.remove()


def channels_last(model: nn.Module) -> nn.Module:
    """The layout in which ours computes."""
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def rows(measure: str, size: str, times: dict[str, Timing], rates: dict[str, float] | None = None) -> Iterator[Row]:
    """A row per contestant, beside SpikingJelly; ours also beside the fastest like it."""
    peer = times["SpikingJelly"].minimum
    for name, timing in times.items():
        ratio, note = peer / timing.minimum, _beside(name, times)
        yield Row(measure, size, name, timing.minimum, timing.median, "s", ratio, note, rates or {})


def _beside(name: str, times: dict[str, Timing]) -> str:
    """Ours against SpikingJelly's better layout, ours compiled against SpikingJelly's compiled."""
    kind, _, way = name.partition(", ")
    like = [f"SpikingJelly, {way}"] if way else ["SpikingJelly", "SpikingJelly, channels last"]
    if kind != "ours" or not times.keys() >= set(like):
        return ""
    ratio = min(times[other].minimum for other in like) / times[name].minimum
    return f"{ratio:.2f} {f'where both have {way}' if way else 'to the better layout'}"


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
