from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd

from sage_snn.studies.silence import silence

BLOCK = ("attention.query", "attention.projection", "mlp.first", "mlp.second")
NODES = ["stem.stages.0.lif", "stem.stages.1.lif", *(f"blocks.{n}.{node}.lif" for n in (0, 1) for node in BLOCK)]


def rates(*silent):
    """Of a small network in which the nodes whose names begin so are silent."""
    return {node: 0.0 if node.startswith(silent) else 0.1 for node in NODES}


@dataclass
class Run:
    """As much of a run as silence looks at."""

    seed: int
    epochs: list

    @property
    def recipe(self):
        return SimpleNamespace(data="digits", seed=self.seed, model=SimpleNamespace(time_steps=4))

    @property
    def metrics(self):
        return pd.DataFrame({"epoch": range(len(self.epochs)), "firing_rates": self.epochs})


def test_silent_runs_are_named_with_their_seeds_and_their_first_silent_layer():
    dead, alive = rates("stem.stages.1", "blocks"), rates("blocks.0")
    runs = [
        Run(1, [alive, dead]),
        Run(2, [alive, dead]),
        Run(1, [dead, alive]),
        Run(3, [rates("blocks.1")]),
        Run(4, [None]),
    ]
    assert silence(runs, ["fixed", "fixed", "sage", "sage", "sage"]) == (
        "3 of 5 networks are silent: in the last epoch no neuron fires "
        "from stem.stages.1 on in fixed (digits, T = 4, seeds 1, 2); "
        "from blocks.1.attention.query on in sage (digits, T = 4, seed 3)."
    )
    assert silence(runs[2:3], ["sage"]) == ""


def test_many_silent_runs_are_told_in_few_words():
    told = silence([Run(1, [rates("stem", "blocks")])] * 9, [f"label {n}" for n in range(9)])
    assert told.endswith("label 5 (digits, T = 4, seed 1); and in 3 more.")
