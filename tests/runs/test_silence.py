import math

import pytest

from sage_snn.runs.silence import silent_from

BLOCK = ("attention.query", "attention.projection", "mlp.first", "mlp.second")
NODES = ["stem.stages.0.lif", "stem.stages.1.lif", *(f"blocks.{n}.{node}.lif" for n in (0, 1) for node in BLOCK)]


def rates_without(*silent):
    """Of a small network in which the nodes whose names begin so are silent."""
    return {node: 0.0 if node.startswith(silent) else 0.1 for node in NODES}


@pytest.mark.parametrize(
    ("rates", "layer"),
    [
        ({"stem.lif": 0.1, "blocks.0.a": 0.1, "blocks.0.b": 0.2}, None),
        ({"stem.lif": 0.1, "blocks.0.a": 0.0, "blocks.0.b": 0.0}, "blocks.0.a"),
        ({"stem.lif": 0.1, "blocks.0.a": 0.1, "blocks.0.b": 0.0, "blocks.1.a": 0.0}, "blocks.0.b"),
        ({"stem.lif": 0.0, "blocks.0.a": 0.0}, "stem.lif"),
        ({"stem.lif": 0.1, "blocks.0.a": 0.0, "blocks.0.b": 0.1}, None),  # silent in the middle only
        ({"stem.lif": 0.1, "blocks.0.a": 0.1, "blocks.0.b": 0.0}, None),  # its block fires
        ({"0": 0.1, "2": 0.0, "4": math.nan}, "2"),  # the last never ran
        ({}, None),
    ],
)
def test_the_first_layer_from_which_on_nothing_fires(rates, layer):
    assert silent_from(rates) == layer


@pytest.mark.parametrize(
    ("silent", "node"),
    [
        ((), None),
        (("stem.stages.1", "blocks"), "stem.stages.1.lif"),
        (("blocks.1",), "blocks.1.attention.query.lif"),
        (("blocks.0.mlp.second", "blocks.1"), "blocks.0.mlp.second.lif"),
        (("blocks.0",), None),  # the next block fires
        (("blocks.1.mlp",), None),  # the connection around it does not
        (("stem", "blocks"), "stem.stages.0.lif"),
    ],
)
def test_a_network_is_silent_from_the_layer_on_after_which_nothing_fires(silent, node):
    assert silent_from(rates_without(*silent)) == node


def test_a_plain_network_is_silent_with_its_last_layer():
    assert silent_from({"features.0.lif": 0.1, "features.3.lif": 0.0}) == "features.3.lif"
