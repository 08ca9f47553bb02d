"""All measurements in order, with a bar, a table, JSON and a picture of the growth curves."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..kernels.memory import keep_freed_memory
from ..kernels.path import code_on
from ..machine import device_name, processor, vectors
from ..screen import console, sheet
from . import gpu, measures
from .events import PRODUCTS, event_driven
from .measures import LARGE, MIDDLE, RESNET, SMALL, Row
from .policies import policies


def run_bench(out: Path | None, *, quick: bool, compiled: bool = False, device: str = "cpu") -> list[Row]:
    """Measure on a device, print the table, and write it to `out` (JSON; a picture of the growth curves beside it)."""
    with torch.device(device):  # networks and data are made there
        return _run_bench(out, quick, compiled)


def _run_bench(out: Path | None, quick: bool, compiled: bool) -> list[Row]:
    keep_freed_memory()  # for all contestants alike, as in training
    screen = console()
    screen.print("\n".join(environment_lines()), highlight=False)
    rows: list[Row] = []
    plan = list(_plan(quick, compiled))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(plan))
        for name, measure in plan:
            progress.update(task, description=name)
            rows += list(measure)
            progress.advance(task)
    screen.print(*tables(rows), sep="\n\n")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps({"environment": environment(), "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
        )
        draw_growth(rows, out.with_suffix(".png"))
        screen.print(f"written to {out}")
    return rows


def _plan(quick: bool, compiled: bool) -> Iterator[tuple[str, Iterator[Row]]]:
    repetitions = 7
    if torch.get_default_device().type != "cpu":
        yield from gpu.plan(quick, repetitions)
        return
    sizes = (SMALL,) if quick else (SMALL, MIDDLE, LARGE)
    yield "training step", measures.training(sizes, repetitions, compiled=compiled)
    resnet = measures.training((RESNET,), repetitions, measure="training step of ResNet-19", compiled=compiled)
    yield "training step of ResNet-19", resnet
    yield "BatchNorm and LIF", measures.units(measures.UNITS, repetitions)
    yield "event-driven products", event_driven(PRODUCTS[-1:] if quick else PRODUCTS, repetitions)
    yield "SAGE overhead", measures.overhead(sizes, 2 * repetitions + 1)  # to see a hundredth of a step
    single = measures.Size(384, 12, 1)
    yield "inference", measures.inferring((single,) if quick else (LARGE, single), repetitions)
    if not quick:
        yield "policies", policies(SMALL, repetitions)
        yield "memory", measures.memory()
        yield "memory of ResNet-19", measures.memory(RESNET, large=RESNET.batch)
        yield "growth", measures.growth(repetitions)


def environment() -> dict[str, Any]:
    """What the numbers were measured on."""
    from importlib.metadata import version

    return {
        "processor": f"{processor()}, {vectors()}{_restrained()}",
        "threads": torch.get_num_threads(),
        "device": device_name(torch.get_default_device()),
        "kernels": code_on(torch.empty(0)),  # on the device that is measured
        "versions": {name: version(name) for name in ("sage-snn", "torch", "spikingjelly")},
    }


def _restrained() -> str:
    """What of the processor's vectors torch was told not to use, in words."""
    used, isa = torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")
    return f" (torch held to {used}, oneDNN to {isa})" if isa else ""


def environment_lines() -> list[str]:
    """The same in words."""
    facts = environment()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    machine = f"{facts['processor']}, {facts['threads']} threads, {facts['device']}"
    return [f"{machine}; {versions}", f"kernels {facts['kernels']}"]


def tables(rows: list[Row]) -> Iterator[Table]:
    """Per measurement: minimum and median over the repetitions, and the ratio of the minima to SpikingJelly's."""
    for (measure, size), group in groupby(rows, key=lambda row: (row.measure, row.size)):
        shown = sheet(title=f"{measure}: {size}")
        for name in ("contestant", "minimum", "median", "times as good"):
            shown.add_column(name, justify="left" if name == "contestant" else "right")
        shown.add_column("")
        for row in group:
            scale, unit = (1e3, "ms") if row.unit == "s" else (1, row.unit)
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            times = [f"{value * scale:.4g} {unit}" for value in (row.minimum, row.median)]
            shown.add_row(row.contestant, *times, ratio, row.note)
        yield shown


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
