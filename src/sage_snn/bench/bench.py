"""All measurements in order, with a bar, a table, JSON and a picture of the growth curves."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..kernels.memory import keep_freed_memory
from ..kernels.path import code_on
from ..machine import device_name, processor, vectors_used
from ..runs import Run
from ..screen import console, sheet
from . import gpu, measures
from .events import FEW, PRODUCTS, event_driven
from .firing import RATE, Stated
from .measures import LARGE, MIDDLE, RESNET, SMALL, Row
from .policies import policies
from .trained import Trained, training_batch

REPETITIONS = 7


def run_bench(
    out: Path | None, *, quick: bool, compiled: bool = False, device: str = "cpu", run: Run | None = None
) -> list[Row]:
    """Measure on a device, print the table, and write it to `out` (JSON; a picture of the growth curves beside it).

    With the weights of `run` what depends on weights; else networks that fire at a stated rate, and everything.
    """
    with torch.device(device):  # networks and data are made there
        return _run_bench(out, list(_plan(quick, compiled, run)), weights_in_words(run))


def _run_bench(out: Path | None, plan: list[tuple[str, Iterator[Row]]], weights: str) -> list[Row]:
    keep_freed_memory()  # for all contestants alike, as in training
    screen = console()
    screen.print("\n".join([*environment_lines(), f"weights {weights}"]), highlight=False)
    rows: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(plan))
        for name, measure in plan:
            progress.update(task, description=name)
            rows += list(measure)
            progress.advance(task)
    screen.print(*tables(rows), sep="\n\n")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        written = {"environment": environment(), "weights": weights, "rows": [asdict(row) for row in rows]}
        out.write_text(json.dumps(written, indent=2) + "\n")
        draw_growth(rows, out.with_suffix(".png"))
        screen.print(f"written to {out}")
    return rows


def _plan(quick: bool, compiled: bool, run: Run | None) -> Iterator[tuple[str, Iterator[Row]]]:
    if run is not None:
        yield from _plan_of_run(run, quick, compiled)
    elif torch.get_default_device().type != "cpu":
        yield from gpu.plan(quick, REPETITIONS)
    else:
        yield from _plan_on_cpu(quick, compiled)


def _plan_of_run(run: Run, quick: bool, compiled: bool) -> Iterator[tuple[str, Iterator[Row]]]:
    size = Trained(run, training_batch(run))
    yield "training step", measures.training((size,), REPETITIONS, compiled=compiled)
    yield "SAGE overhead", measures.overhead((size,), 2 * REPETITIONS + 1)  # to see a hundredth of a step
    batches = (1,) if quick else (LARGE.batch, 1)
    yield "inference", measures.inferring((Trained(run, batch) for batch in batches), REPETITIONS)


def _plan_on_cpu(quick: bool, compiled: bool) -> Iterator[tuple[str, Iterator[Row]]]:
    sizes = [Stated(size) for size in ((SMALL,) if quick else (SMALL, MIDDLE, LARGE))]
    yield "training step", measures.training(sizes, REPETITIONS, compiled=compiled)
    name = "training step of ResNet-19"
    yield name, measures.training((Stated(RESNET),), REPETITIONS, measure=name, compiled=compiled)
    yield "BatchNorm and LIF", measures.units(measures.UNITS, REPETITIONS)
    yield "event-driven products", event_driven(FEW if quick else PRODUCTS, REPETITIONS)
    yield "SAGE overhead", measures.overhead(sizes, 2 * REPETITIONS + 1)
    single = Stated(replace(LARGE, batch=1))
    yield "inference", measures.inferring((single,) if quick else (sizes[-1], single), REPETITIONS)
    if not quick:
        yield "policies", policies(sizes[0], REPETITIONS)
        yield "memory", measures.memory()
        yield "memory of ResNet-19", measures.memory(RESNET, large=RESNET.batch)
        yield "growth", measures.growth(REPETITIONS)


def weights_in_words(run: Run | None) -> str:
    """Where those of the networks come from."""
    if run is not None:
        return f"of the run {run.name}, the same on both sides, on its test images"
    return f"as drawn, the same on both sides; every neuron behind a normalisation brought to fire at {RATE:.0%}"


def environment() -> dict[str, Any]:
    """What the numbers were measured on."""
    from importlib.metadata import version

    return {
        "processor": f"{processor()}, {vectors_used()}",
        "threads": torch.get_num_threads(),
        "device": device_name(torch.get_default_device()),
        "kernels": code_on(torch.empty(0)),  # on the device that is measured
        "versions": {name: version(name) for name in ("sage-snn", "torch", "spikingjelly")},
    }


def environment_lines() -> list[str]:
    """The same in words."""
    facts = environment()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    machine = f"{facts['processor']}, {facts['threads']} threads, {facts['device']}"
    return [f"{machine}; {versions}", f"kernels {facts['kernels']}"]


def tables(rows: list[Row]) -> Iterator[Table]:
    """Per measurement: minimum and median over the repetitions, and the ratio of the minima to SpikingJelly's."""
    for (measure, size, rates), group in groupby(rows, key=lambda row: (row.measure, row.size, row.rates)):
        shown = sheet(title=f"{measure}: {size}{_rates_in_words(rates)}")
        for name in ("contestant", "minimum", "median", "times as good"):
            shown.add_column(name, justify="left" if name == "contestant" else "right", no_wrap=True)
        shown.add_column("")
        for row in group:
            scale, unit = (1e3, "ms") if row.unit == "s" else (1, row.unit)
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            times = [f"{value * scale:.4g} {unit}" for value in (row.minimum, row.median)]
            shown.add_row(row.contestant, *times, ratio, row.note)
        yield shown


def _rates_in_words(rates: dict[str, float]) -> str:
    parts = {"firing": [part for part in rates if " " not in part], "not zero": [part for part in rates if " " in part]}
    told = (f"{title} {', '.join(f'{part} {rates[part]:.1%}' for part in of)}" for title, of in parts.items() if of)
    return "".join(f"; {words}" for words in told)


def draw_growth(rows: list[Row], path: Path) -> None:
    """A panel per quantity that grows; both axes logarithmic."""
    names = list(dict.fromkeys(row.measure for row in rows if row.measure.startswith("growth")))
    if not names:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.4), layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row.measure == name]
        sizes = list(dict.fromkeys(row.size for row in mine))
        for mark, contestant in zip("os^", dict.fromkeys(row.contestant for row in mine), strict=False):
            times = [row.minimum * 1e3 for row in mine if row.contestant == contestant]
            axis.plot(range(len(sizes)), times, marker=mark, label=contestant)
        axis.set_xticks(range(len(sizes)), [_short(name, size) for size in sizes])
        axis.set(title=name, yscale="log", ylabel="ms per training step", xlabel=name.removeprefix("growth with "))
        for set_formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            set_formatter(lambda value, _: f"{value:.0f}" if str(value)[0] in "1235" else "")
    axes[0].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _short(name: str, size: str) -> str:
    """The number that grows, out of the size's description."""
    parts = {part.split()[-1] if "tokens" not in part else "tokens": part for part in size.split(", ")}
    wanted = {
        "growth with T": "T=",
        "growth with batch": "batch ",
        "growth with width": "-",
        "growth with tokens": "tokens",
    }
    mark = wanted[name]
    part = next(part for part in parts.values() if mark in part)
    return part.split(" ")[0] if mark == "tokens" else part.partition(mark)[2]
