"""Where a run computes: one process, or those that torchrun started."""

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric

from ..recipes.recipe import Recipe
from ..runs.folder import RunError

_PRECISION = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def applied_precision(recipe: Recipe) -> str:
    """`auto` is fp16 on CUDA and 32 bits on a CPU, where half-precision convolutions are many times slower."""
    if recipe.precision == "auto":
        return "16" if torch.cuda.is_available() else "32"
    return recipe.precision


def build_fabric(recipe: Recipe) -> Fabric:
    """Lightning's Fabric on this process's device, joined with the other ranks."""
    ranks, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = Fabric(
        accelerator="auto",
        devices=local,
        num_nodes=max(1, ranks // local),
        strategy="ddp" if ranks > 1 else "auto",
        precision=_PRECISION[applied_precision(recipe)],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
