"""Three policies side by side on the embedded digits."""

from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Column, Table

from ..recipes.recipe import load_recipe
from ..runs.folder import RunFolder
from ..screen import console, sheet
from .start import train

POLICIES = ("fixed", "learnable", "sage")  # those that the paper compares


def run_demo(out: Path, epochs: int | None = None) -> dict[str, dict[str, Any]]:
    """Train the digits recipe with each policy, print the table, and give the summaries."""
    settings = _length(epochs)
    summaries = {}
    for policy in POLICIES:
        folder = out / policy
        summaries[policy] = train("digits", folder, settings=settings | {"policy.kind": policy}, resume=folder.exists())
    console().print(_table(out, summaries))
    console().print(
        f"Runs are in {out}/{{{','.join(POLICIES)}}}; curves: tensorboard --logdir {out}\n"
        "One seed on a tiny set: differences of a point or two mean nothing here.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return summaries


def _length(epochs: int | None) -> dict[str, Any]:
    """Settings for so many epochs; a warm-up that would not end in time is cut."""
    if epochs is None:
        return {}
    return {"epochs": epochs, "warmup_epochs": max(0, min(load_recipe("digits").warmup_epochs, epochs - 1))}


def _table(out: Path, summaries: dict[str, dict[str, Any]]) -> Table:
    seconds = next(iter(summaries.values()))["seconds"]
    title = f"\n{load_recipe('digits').about['brief']}"
    numbers = [Column(name, justify="right") for name in ("top-1 %", "best epoch")]
    table = sheet("policy", *numbers, "slopes at end", "slopes on the way", "time", title=title)
    for policy, summary in summaries.items():
        signals = pd.concat(pd.read_parquet(part) for part in sorted(RunFolder(out / policy).signals.glob("*.parquet")))
        last = signals[signals["step"] == signals["step"].max()]["slope"]
        table.add_row(
            policy,
            f"{summary['last_top1']:.2f}",
            f"{summary['best_top1']:.2f}",
            " ".join(f"{slope:.3f}" for slope in last),
            f"{signals['slope'].min():.3f} to {signals['slope'].max():.3f}",
            f"{summary['seconds']:.0f} s ({summary['seconds'] / seconds:.2f}x)",
        )
    return table
