import math

import pytest

from sage_snn.runs.evaluation import silent_from


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
