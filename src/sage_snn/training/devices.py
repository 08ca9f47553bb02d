"""Where a run computes: one process, or those that torchrun started."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from ..compat import precision_of
from ..recipes.recipe import Recipe
from ..runs.folder import RunError

_SECONDS_TO_SPEAK = 5
PATIENCE = timedelta(minutes=30)  # with a rank that does not answer; the first may be alone at work for minutes
Made = TypeVar("Made")
_PRECISION = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def applied_precision(fabric: Fabric) -> str:
    """What Lightning computes in, in the words of a recipe: it has no fp16 on a CPU, and takes bf16 there."""
    names = {lightnings: ours for ours, lightnings in _PRECISION.items()}
    return names[precision_of(fabric).precision]


def build_fabric(recipe: Recipe) -> Fabric:
    """Lightning's Fabric on this process's device, joined with the other ranks."""
    ranks, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = Fabric(
        accelerator="auto",
        devices=local,
        num_nodes=max(1, ranks // local),
        strategy=DDPStrategy(timeout=PATIENCE) if ranks > 1 else "auto",
        precision=_PRECISION[_chosen_precision(recipe)],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def _chosen_precision(recipe: Recipe) -> str:
    """`auto` is fp16 on CUDA and 32 bits on a CPU, where half-precision convolutions are many times slower."""
    if recipe.precision == "auto":
        return "16" if torch.cuda.is_available() else "32"
    return recipe.precision


def by_the_first(fabric: Fabric, make: Callable[[], Made]) -> Made:
    """What `make` gives on the first rank, on all of them: they need not see the same disk.

    When it fails, all of them end, and the first says why.
    """
    if fabric.world_size == 1:
        return make()
    made, problem = None, None
    if fabric.is_global_zero:
        try:
            made = make()
        except Exception as error:
            problem = error
    failed, made = fabric.broadcast((problem is not None, made))
    if problem is not None:
        raise problem
    if failed:
        time.sleep(_SECONDS_TO_SPEAK)  # torchrun stops all processes when one of them ends
        raise SystemExit(1)
    return made  # pyright: ignore[reportReturnType]


def from_all(fabric: Fabric, value: Any) -> list[Any]:
    """The value of every rank, in their order; every rank makes this call."""
    values: list[Any] = [value] * fabric.world_size
    if fabric.world_size > 1:
        dist.all_gather_object(values, value)
    return values


@contextmanager
def refusing_to_wait(ranks: int) -> Iterator[None]:
    """When another rank is gone, stop with a message; gloo and nccl tell it in errors of many wordings."""
    try:
        yield
    except RuntimeError as error:
        if ranks > 1 and re.search(r"gloo|nccl|connection|peer|socket|timed? ?out", str(error), re.IGNORECASE):
            first = str(error).splitlines()[0]
            raise RunError(f"another process of this run is gone ({first}); go on with --resume") from None
        raise


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, or of the GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    return resident_peak_mb(status.read_text() if status.is_file() else "", sys.platform)


def resident_peak_mb(status: str, platform: str) -> float:
    """From Linux's status of a process; elsewhere from `ru_maxrss`, which is in bytes on a Mac."""
    # On Linux `ru_maxrss` of a process that another one started is at least what that one had.
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak is not None:
        return int(peak[1]) / 2**10
    import resource  # Unix only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if platform == "darwin" else 2**10)
