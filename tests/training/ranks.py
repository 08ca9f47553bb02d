"""What every process of tests/training/test_ranks.py does: a run, the same stopped in an epoch, and gone on with.

And the same without its newest checkpoint, so that it goes on from where an epoch begins.

Each has a folder of its own, as on machines without a shared disk.
"""

import importlib.util
import os
import random
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from sage_snn.recipes.models import SpikformerPart
from sage_snn.runs.checkpoint import load_checkpoint
from sage_snn.training import InterruptedRunError, stopping, train

_spec = importlib.util.spec_from_file_location("tiny_runs", Path(__file__).with_name("conftest.py"))
tiny_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_runs)

SETTINGS = tiny_runs.TINY | {"observe.temperatures": [0.25], "policy.kind": "sage", "model.dim": 32}
usual_build = SpikformerPart.build


def build(self, **shape):
    """With dropout, so that every process has random numbers of its own."""
    network = usual_build(self, **shape)
    network.head.register_forward_pre_hook(lambda head, args: (F.dropout(args[0] + 1, 0.5, head.training),))
    return network


def main(folder: Path) -> None:
    SpikformerPart.build = build
    mine = folder / os.environ["RANK"]
    train("digits", mine / "whole", settings=SETTINGS, quiet=True)
    usual, stopping.StopRequest = stopping.StopRequest, tiny_runs.StopInTheMiddle
    try:
        train("digits", mine / "parts", settings=SETTINGS, quiet=True)
    except InterruptedRunError as stop:
        print(stop, flush=True)
    stopping.StopRequest = usual
    if (mine / "parts").is_dir():  # the first rank has it
        shutil.copytree(mine / "parts", mine / "boundary")
        max((mine / "boundary" / "checkpoints").iterdir()).unlink()
        left = load_checkpoint(mine / "boundary" / "checkpoints")
        print(f"left is step {left['step']} of epoch {left['epoch'] + 1}", flush=True)
    for name in ("parts", "boundary"):
        torch.manual_seed(random.randrange(1000))
        train("digits", mine / name, settings=SETTINGS, quiet=True, resume=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
