"""Runs whose network does not fire, in words."""

from collections.abc import Sequence
from typing import Any

from ..runs.silence import silent_from
from .results import RunResult

NAMED = 6  # groups of runs that a sentence names


def last_rates(run: RunResult) -> dict[str, float]:
    """Name of a node -> share of its neurons that spiked in the last epoch; empty where nobody counted."""
    if "firing_rates" not in run.metrics or run.metrics.empty:
        return {}
    rates: Any = run.metrics["firing_rates"].iloc[-1]
    return rates if isinstance(rates, dict) else {}


def silence(runs: Sequence[RunResult], labels: Sequence[str]) -> str:
    """A sentence that names the runs whose network is silent, and from where on; empty if all fire."""
    silent: dict[tuple[str, str], list[int]] = {}
    for run, label in zip(runs, labels, strict=True):
        if (node := silent_from(last_rates(run))) is not None:
            name = f"{label} ({run.recipe.data}, T = {run.recipe.model.time_steps}"
            silent.setdefault((layer_name(node), name), []).append(run.recipe.seed)
    if not silent:
        return ""
    by_layer: dict[str, list[str]] = {}
    for (layer, name), seeds in list(silent.items())[:NAMED]:
        told = f"{name}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
        by_layer.setdefault(layer, []).append(told)
    where = "; ".join(f"from {layer} on in {', '.join(names)}" for layer, names in by_layer.items())
    more = f"; and in {len(silent) - NAMED} more" if len(silent) > NAMED else ""
    count = sum(map(len, silent.values()))
    begin = f"{count} of {len(runs)} networks {'are' if count > 1 else 'is'} silent"
    return f"{begin}: in the last epoch no neuron fires {where}{more}."


def layer_name(node: str) -> str:
    """A node as people read it: `stem.stages.1.lif` is stem.stages.1."""
    return node.removesuffix(".lif")
