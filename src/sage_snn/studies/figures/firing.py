"""How often neurons fire: the share that spikes, node by node, over training."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

from collections import Counter

import numpy as np
import pandas as pd

from ...runs.silence import silent_from
from ..silence import last_rates, layer_name
from .figure import Figure
from .lines import FEW, Lines
from .tidy import MOST, Group, Member, block_name, name_of, typical

NAMED = 6  # silent nodes that a caption names
COUNTED = {"first": "1", "second": "2"}


def firing_figures(members: list[Member]) -> list[Figure]:
    """A panel per kind of node with a curve per block, and one for the stem; a figure per label that counted spikes."""
    recorded = {group: rates for group in typical(members) if not (rates := _rates(group)).empty}
    shown = list(recorded)[:MOST]
    made: list[Figure] = []
    for group in shown:
        title = "neurons that spike (%)"
        drawing = Lines("epoch", "rate", "curve", "epoch", title, column="panel", references={"": 0.0})
        caption = (
            "Share of a node's neurons that spike in a time step, on one batch of test images after each epoch. "
            f"{group.seeds} {_silent(recorded[group])}"
        )
        name, data = name_of("firing", group, shown), _marked(_over_seeds(recorded[group]))
        silent = _silent_network(group)
        title = f"Firing rates: {group.title}{' (silent network)' if silent else ''}"
        made.append(Figure(name, title, f"{silent}{caption}", data, drawing))
    return made


def _rates(group: Group) -> pd.DataFrame:
    """A row per run, epoch and node, in percent; empty where no spikes were counted."""
    rows = [
        (member.seed, epoch, *_panel_and_curve(name), 100 * rate)
        for member in group.members
        if "firing_rates" in member.run.metrics
        for epoch, rates in member.run.metrics[["epoch", "firing_rates"]].to_numpy()
        if isinstance(rates, dict)  # a run that an older version began lacks its first epochs
        # Blocks first: they look as in the figure of their slopes.
        for name, rate in sorted(rates.items(), key=lambda item: not item[0].startswith("blocks."))
    ]
    return pd.DataFrame(rows, columns=["seed", "epoch", "panel", "curve", "rate"])


def _over_seeds(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean, lowest and highest seed of each node; few enough epochs for markers, the last among them."""
    last = int(rates["epoch"].max())
    shown = rates[(last - rates["epoch"]) % -(-(last + 1) // FEW) == 0]
    by_node = shown.groupby(["panel", "curve", "epoch"], sort=False)["rate"]
    data = by_node.agg(rate="mean", low="min", high="max", runs="count").reset_index()
    data.loc[data["runs"] < 2, ["low", "high"]] = np.nan
    return data.sort_values("epoch", kind="stable", ignore_index=True)


def _marked(data: pd.DataFrame) -> pd.DataFrame:
    """The panels of which no node fires in the last epoch, marked by name."""
    last = data[data["epoch"] == data["epoch"].max()]
    highest = last.groupby("panel")["rate"].max()
    marked = {panel: f"{panel}: silent" for panel, rate in highest.items() if rate == 0}
    return data.assign(panel=data["panel"].replace(marked))


def _silent_network(group: Group) -> str:
    """Runs whose network is silent from some layer on, in words."""
    nodes = {m.seed: node for m in group.members if (node := silent_from(last_rates(m.run))) is not None}
    told = ", ".join(f"from {layer_name(node)} on (seed {seed})" for seed, node in nodes.items())
    return f"No neuron fires in the last epoch {told}. " if nodes else ""


def _silent(rates: pd.DataFrame) -> str:
    """The nodes without a spike in the last epoch of their run, in words."""
    last = rates[rates["epoch"] == rates.groupby("seed")["epoch"].transform("max")]
    silent = last[last["rate"] == 0]
    counts = Counter(f"{panel}, {curve}" for panel, curve in zip(silent["panel"], silent["curve"], strict=True))
    if not counts:
        return "No node is silent in the last epoch."
    seeds = last["seed"].nunique()
    named = [f"{name} ({count} of {seeds} seeds)" if seeds > 1 else name for name, count in counts.items()]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"Silent in the last epoch, at 0 %: {'; '.join(named[:NAMED])}{more}."


def _panel_and_curve(name: str) -> tuple[str, str]:
    """Panel and curve of a node: `blocks.0.attention.query.lif` is the query of block 0."""
    words = [COUNTED.get(word, word) for word in name.removesuffix(".lif").split(".")]
    if words[0] == "blocks" and len(words) > 2:
        return " ".join(words[2:]).removeprefix("attention "), block_name(words[1])
    return words[0], " ".join(words[1:]) or words[0]
