"""Networks that do not fire: from some layer on no neuron spikes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .results import RunResult

NAMED = 6  # groups of runs that a sentence names


def silent_from(rates: Mapping[str, float]) -> str | None:
    """The node from which on none fires, in the order of the network; None if the end of the network does.

    A residual connection goes around a silent node, so the whole last block (or numbered layer) must be silent.
    """
    names = list(rates)
    first = len(names)
    while first and rates[names[first - 1]] == 0:
        first -= 1
    if first == len(names) or any(_stage(name) == _stage(names[-1]) for name in names[:first]):
        return None
    return names[first]


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


def _stage(name: str) -> str:
    """Up to its first number: `blocks.1.mlp.first.lif` is part of blocks.1."""
    counted = re.match(r".*?\.\d+", name)
    return counted.group() if counted else name
