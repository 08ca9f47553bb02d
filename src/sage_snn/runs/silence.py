"""Networks that do not fire: from some layer on no neuron spikes."""

import math
from collections.abc import Mapping


def silent_from(rates: Mapping[str, float]) -> str | None:
    """The first layer, in the order of the rates, from which on nothing fires; None where the last block does.

    A single layer at the end of a block is often silent early in training, and its shortcut is not.
    """
    silent: list[str] = []
    for name, rate in reversed([item for item in rates.items() if not math.isnan(item[1])]):
        if rate > 0:
            return silent[-1] if silent and block_of(name) != block_of(silent[0]) else None
        silent.append(name)
    return silent[-1] if silent else None


def block_of(name: str) -> str:
    """blocks.3.mlp.first.norm.weight -> blocks.3; stem.stages.0... -> stem."""
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdigit() else parts[0]
