import pytest
import torch
from torch import nn

from sage_snn.inference import fuse
from sage_snn.layers import NormLIF, StatelessLIF
from sage_snn.runs.work import measure_work


@pytest.fixture(scope="module")
def network():
    from sage_snn.models import spikformer

    torch.manual_seed(0)
    return spikformer(depth=1, dim=16, heads=2, time_steps=3, image_size=8, patch_size=2, in_channels=1).eval()


@pytest.fixture(scope="module")
def batches():
    return [torch.randn(2, 1, 8, 8), torch.randn(3, 1, 8, 8)]


# Per image: 64 pixels in the first three stages, 16 in the last convolution; 9 weights per pair of channels; T = 3.
MACS = {
    "stem.stages.0": 64 * 9 * 1 * 2,  # an image that stands still passes once
    "stem.stages.1": 3 * 64 * 9 * 2 * 4,
    "stem.stages.3": 3 * 64 * 9 * 8 * 16,
    "stem.position": 3 * 16 * 9 * 16 * 16,
    "blocks.0.attention.query": 3 * 16 * 16 * 16,
    "blocks.0.attention": 3 * 2 * (2 * 16 * 8 * 8),  # two heads of eight channels, fewer than tokens: k v first, then q
    "blocks.0.mlp.first": 3 * 16 * 16 * 64,
    "head": 16 * 10,
}


@pytest.mark.parametrize("form", ["trained", "float32", "int8"])
def test_what_a_dense_path_does_worked_out_by_hand(network, batches, form):
    work = measure_work(network if form == "trained" else fuse(network, form), batches)
    assert {name: work.layers[name].macs for name in MACS} == MACS
    assert work.macs == sum(layer.macs for layer in work.layers.values())


@pytest.mark.parametrize("form", ["trained", "int8"])
def test_the_time_of_every_layer_and_between_them_adds_up(network, batches, form):
    work = measure_work(network if form == "trained" else fuse(network, form), batches)
    assert all(layer.seconds > 0 for layer in work.layers.values())
    assert work.rest > 0
    assert work.seconds == pytest.approx(work.rest + sum(layer.seconds for layer in work.layers.values()))


def test_a_layer_within_another_is_timed_once():
    import time

    class Slow(nn.Linear):
        def forward(self, input):
            time.sleep(0.05)
            return super().forward(input)

    lif = StatelessLIF(step_mode="m")
    unit = NormLIF(Slow(4, 4), nn.BatchNorm1d(4), lif)
    outer = nn.Sequential(nn.Sequential(unit, nn.Linear(4, 2)))
    work = measure_work(outer, [torch.randn(1, 5, 4)])  # one batch of one "image": five steps are its rows
    assert 0.05 <= work.layers["0.0"].seconds < 0.2
    assert work.layers["0"].seconds < 0.05
    assert work.seconds < 0.25


def test_measuring_leaves_the_network_as_it_was(network, batches):
    measure_work(network, batches)
    assert not any("forward" in vars(module) or "forward_static" in vars(module) for module in network.modules())
