"""Folders of runs that nobody trained, for tests of what is made of runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sage_snn.recipes import load_recipe
from sage_snn.runs import RunFolder

TEMPERATURES = (0.25, 0.5, 1.0, 2.0)


def write_run(
    folder: Path,
    settings: dict[str, Any] | None = None,
    *,
    top1: float,
    steps: int = 5,
    speed: float | None = 100.0,
    recipe: Any = None,
    more: dict[str, Any] | None = None,
):
    """A finished run of two blocks and three heads, or as the settings say, whose last epoch has this accuracy.

    Or one of a recipe as it is; `more` goes into its summary. With `epochs: 0` there it was converted only.
    """
    small = {"epochs": 4, "warmup_epochs": 0, "cooldown_epochs": 0, "model.dim": 24, "model.heads": 3, "model.depth": 2}
    recipe = recipe or load_recipe("digits", small | (settings or {}))
    if (more or {}).get("epochs") == 0:
        return _write_converted(folder, recipe, top1, more or {})
    files = RunFolder(folder)
    files.signals.mkdir(parents=True)
    versions = {"python": "3.11", "torch": "2.15"}
    files.write_recipe(recipe, {"parameters": 1000, "device": "cpu", "threads": 1, "versions": versions})
    chance = np.random.default_rng([recipe.seed, recipe.model.time_steps])
    for epoch in range(recipe.epochs):
        gained = top1 - (recipe.epochs - 1 - epoch)
        line = {"epoch": epoch, "train_loss": 1.0, "test_loss": 1.0, "test_top1": gained, "test_top5": 99.0}
        line |= {"lr": 1e-3, "seconds": 1.0, "images_per_second": speed, "firing_rates": _firing_rates(recipe, epoch)}
        files.append_metrics(line)
        _signals(recipe, epoch, steps, chance).to_parquet(files.signals / f"epoch-{epoch:04d}.parquet")
        if recipe.observe.temperatures:
            where = files.path / "observations"
            where.mkdir(exist_ok=True)
            _observations(recipe, epoch, steps, chance).to_parquet(where / f"epoch-{epoch:04d}.parquet")
    summary = {"last_top1": top1, "best_top1": top1 + 0.5, "epochs": recipe.epochs, "parameters": 1000}
    summary |= {"seconds": float(recipe.epochs), "peak_memory_mb": 300.0, "policy": recipe.policy.kind}
    (folder / "summary.json").write_text(json.dumps(summary | {"seed": recipe.seed, "finished": True} | (more or {})))
    return folder


def _write_converted(folder: Path, recipe: Any, top1: float, more: dict[str, Any]) -> Path:
    """A run without an epoch: one line of metrics, in which what only training has is null."""
    files = RunFolder(folder)
    folder.mkdir(parents=True)
    files.write_recipe(recipe, {"parameters": 1000, "device": "cpu", "threads": 1})
    line = {"epoch": 0, "train_loss": None, "test_loss": 1.0, "test_top1": top1, "test_top5": 99.0, "lr": None}
    files.append_metrics(line | {"seconds": 0.0, "images_per_second": None, "firing_rates": _firing_rates(recipe, 0)})
    summary = {"last_top1": top1, "best_top1": top1, "parameters": 1000, "seconds": 1.0, "peak_memory_mb": 300.0}
    summary |= {"policy": recipe.policy.kind, "seed": recipe.seed, "finished": True}
    (folder / "summary.json").write_text(json.dumps(summary | more))
    return folder


def write_study(
    root: Path, *, time_steps=(1, 2, 4, 8), seeds=range(1, 6), steps: int = 5, observed=(), **settings: Any
) -> list[Path]:
    """A run per policy, time steps and seed; sage is better by half a point, and seed 1's first head is dead.

    Runs of the `observed` time steps recorded their attention at four temperatures.
    """
    gains = {"fixed": 0.0, "learnable": 0.2, "sage": 0.5}
    made: list[Path] = []
    for policy, gain in gains.items():
        for T in time_steps:
            for seed in seeds:
                chosen = {"policy.kind": policy, "model.time_steps": T, "seed": seed} | settings
                chosen |= {"observe.temperatures": list(TEMPERATURES)} if T in observed else {}
                top1 = 80 + T + gain + 0.1 * ((7 * seed + 3 * T) % 5) + 0.02 * len(policy) * seed
                made.append(write_run(root / f"{policy}-t{T}-s{seed}", chosen, top1=top1, steps=steps))
    return made


def _depth(recipe: Any) -> int:
    """Blocks, or as many layers as are enough to have several."""
    return getattr(recipe.model, "depth", 3)


def _firing_rates(recipe: Any, epoch: int) -> dict[str, float]:
    """Names as in a Spikformer; the first query is silent in runs of seed 1."""
    inside = ["attention.query", "attention.key", "attention.value", "attention", "attention.projection"]
    inside += ["mlp.first", "mlp.second"]
    names = [*(f"stem.stages.{stage}.lif" for stage in range(4)), "stem.position.lif"]
    names += [f"blocks.{block}.{node}.lif" for block in range(_depth(recipe)) for node in inside]
    rates = {name: 0.02 + 0.001 * (place + epoch + recipe.seed) for place, name in enumerate(names)}
    return rates | ({"blocks.0.attention.query.lif": 0.0} if recipe.seed == 1 else {})


def _signals(recipe: Any, epoch: int, steps: int, chance: np.random.Generator) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        for block in range(_depth(recipe)):
            row = {"step": step, "block": block, "dispersion": None, "zscore": None, "slope": 4.0, "entropy": None}
            if recipe.policy.kind == "fixed":
                row["slope"] = recipe.policy.slope
            elif recipe.policy.kind == "learnable":
                row["slope"] = 4 + 0.01 * step
            elif recipe.policy.kind == "scheduled":
                row["slope"] = 2 + 2 * step / (recipe.epochs * steps - 1)
            elif recipe.policy.kind == "sage":
                entropy = 0.99 - 0.001 * chance.random(recipe.model.heads) * (block + 1)
                entropy[0] = 1.0 if recipe.seed == 1 and block == 0 else entropy[0]
                score = np.sin(step / 9 + block)
                row |= {"dispersion": float(entropy.std()), "zscore": score, "slope": 4 + 0.5 * np.tanh(score)}
                row["entropy"] = entropy.tolist()
            rows.append(row)
    return pd.DataFrame(rows)


def _observations(recipe: Any, epoch: int, steps: int, chance: np.random.Generator) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        for block in range(_depth(recipe)):
            for temperature in recipe.observe.temperatures:
                spread = 0.004 / temperature * (1 + block) * chance.random(recipe.model.heads)
                lists = {"entropy": (1 - spread).tolist(), "gini": (0.98 - spread / 10).tolist()}
                rows.append({"step": step, "block": block, "temperature": temperature, **lists})
    return pd.DataFrame(rows)
