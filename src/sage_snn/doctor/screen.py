"""One screen about this machine: versions, devices, compiler, and every operator beside its twin."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..kernels import status
from ..kernels.gpu.available import is_interpreting
from ..machine import device_name, devices, processor, vectors
from ..screen import console, sheet
from .operators import Diagnosis, diagnose

PACKAGES = ("sage-snn", "torch", "triton", "spikingjelly", "timm", "lightning", "numpy")


class DoctorError(RuntimeError):
    """What was asked for cannot be done here, and the cure."""


def examine() -> bool:
    """Print the screen; whether every operator agrees with its twin."""
    screen = console()
    for name, words in _facts():
        screen.print(f"{name:<10}{words}", highlight=False, markup=False, soft_wrap=True)
    diagnoses = [diagnosis for device in devices() for diagnosis in diagnose(device)]
    screen.print("", _table(diagnoses), "", sep="\n")
    wrong = [diagnosis for diagnosis in diagnoses if not diagnosis.is_right]
    for diagnosis in wrong:
        screen.print(
            f"{diagnosis.operator} on {diagnosis.device} is WRONG; until it is mended, set SAGE_SNN_KERNELS=off",
            style="bold red",
        )
    if not wrong:
        screen.print("every operator agrees with its twin in plain torch (flipped: share of spikes; error: relative)")
    return not wrong


def compile_for(target: str) -> bool:
    """Compile every Triton kernel for a kind of device, which need not be here; whether all are as they should be."""
    try:
        from ..kernels.gpu.compiled import TARGETS, compiled
    except ImportError:
        raise DoctorError("Triton, which compiles the GPU kernels, is missing; pip install triton") from None
    if target not in TARGETS:
        raise DoctorError(f"no kind of device is called {target!r}; choose from {', '.join(TARGETS)}")
    if is_interpreting():
        raise DoctorError("Triton's interpreter is on, which compiles nothing; unset SAGE_SNN_KERNELS")
    shown = track(compiled(target), "compiling", console=Console(stderr=True), transient=True)
    rows = sorted(shown, key=lambda row: row.variant.kernel.__name__)
    table = sheet(title=f"Triton kernels for {target}, in all forms")
    table.add_column("kernel")
    for name in ("forms", "registers", "spilled", "shared", "load"):
        table.add_column(name, justify="right")
    for name, group in groupby(rows, key=lambda row: row.variant.kernel.__name__):
        forms = list(group)
        most = [max(getattr(row, measure) for row in forms) for measure in ("registers", "spilled", "shared")]
        widest = min(max(row.loads, default=0) for row in forms)
        table.add_row(name, *map(str, (len(forms), *most, widest)))
    screen = console()
    screen.print(table)
    screen.print("the most registers and bytes of any form; load: the widest of the form that has the narrowest, bytes")
    wrong = [row for row in rows if row.problems]
    for row in wrong:
        screen.print(f"{row.variant.name}: {'; '.join(row.problems)}", style="bold red", highlight=False)
    return not wrong


def _facts() -> list[tuple[str, str]]:
    threads = f"{os.cpu_count()} cores, threads in use: {torch.get_num_threads()}"
    return [
        ("versions", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("processor", f"{processor()}, {vectors()}, {threads}"),
        ("devices", ", ".join(device_name(device) for device in devices())),
        ("kernels", status()),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _table(diagnoses: list[Diagnosis]) -> Table:
    table = sheet()
    for name in ("operator", "device", "path"):
        table.add_column(name)
    for name in ("ms", "twin, ms", "flipped", "error"):
        table.add_column(name, justify="right")
    for seen in diagnoses:
        way = seen.path if seen.reason is None else f"{seen.path}: {seen.reason}"
        numbers = f"{seen.milliseconds:.2f}", f"{seen.twin_milliseconds:.2f}", f"{seen.flips:.2g}", f"{seen.error:.1e}"
        table.add_row(seen.operator, seen.device, way, *numbers, style=None if seen.is_right else "bold red")
    return table
