import pytest
import torch
from spikingjelly.activation_based.op_counter import DispatchCounterMode
from torch import nn

from sage_snn.neurons import LIFNode
from sage_snn.runs.energy import Activity, Layer, measure, spike_counters


def counted(operation):
    """(ACs, MACs) of one call."""
    synops, macs = spike_counters()
    with torch.no_grad(), DispatchCounterMode([synops, macs]):
        operation()
    return synops.get_total(), macs.get_total()


def test_synaptic_operations_are_spikes_times_fan_out():
    # T = 4, two sequences of five numbers, halved by the first layer.
    synapse = nn.Linear(5, 5, bias=False)
    synapse.weight.data = 0.5 * torch.eye(5)
    node = LIFNode(tau=2.0, v_threshold=1.0, step_mode="m", carry_state=False)
    network = nn.Sequential(synapse, node, nn.Linear(5, 3))
    inputs = torch.full((4, 2, 5), -2.0)
    inputs[0, 0, :2] = 5.0  # two spikes: from rest, the membrane rises to 1.25
    inputs[3, 1, 4] = 18.0  # and a third: from above -1 it rises to above 4
    activity = measure(network, [inputs])
    assert activity.images == 2
    assert activity.sops * 2 == 3 * 3
    assert activity.layers["2"].acs * 2 == 3 * 3
    assert activity.layers["1"].firing_rate == 3 / 40
    assert activity.layers["0"].macs == 4 * 25  # real-valued input: dense, in each of the four steps
    assert activity.macs == 4 * 25
    assert activity.ann_macs == 25 + 15


def test_a_spike_at_the_border_reaches_fewer_outputs():
    convolution = nn.Conv2d(1, 6, 3, padding=1, bias=False)
    spikes = torch.zeros(1, 1, 5, 5)
    spikes[0, 0, 0, 0] = spikes[0, 0, 2, 2] = 1
    assert counted(lambda: convolution(spikes)) == ((4 + 9) * 6, 0)


@pytest.mark.parametrize("groups", [1, 2])
def test_every_spike_of_a_residual_sum_counts(groups):
    convolution = nn.Conv2d(2, 6, 3, padding=1, stride=1, groups=groups, bias=False)
    sums = torch.zeros(1, 2, 5, 5)
    sums[0, 0, 0, 0], sums[0, 1, 2, 2] = 1, 3
    assert counted(lambda: convolution(sums)) == ((1 * 4 + 3 * 9) * 6 // groups, 0)


def test_residual_sums_through_a_linear_layer_are_accumulations():
    sums = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    for bias in (True, False):
        assert counted(lambda bias=bias: nn.Linear(3, 7, bias=bias)(sums)) == (6 * 7, 0)


def test_real_numbers_are_multiplied():
    assert counted(lambda: nn.Linear(3, 7)(torch.tensor([[0.5, 2.0, 1.0]]))) == (0, 21)


def test_products_of_spikes_are_accumulations():
    q = torch.tensor([[[1.0, 0, 1], [0, 1, 1]]])
    k = torch.tensor([[[1.0, 1, 0], [0, 0, 1]]])
    v = torch.tensor([[[1.0, 0], [1, 1]]])
    # Coincidences of q and k: 1, 1, 1, 1. Then each of the three spikes of v takes in a column of two scores.
    scores = q @ k.transpose(-1, -2)
    assert counted(lambda: q @ k.transpose(-1, -2)) == (4, 0)
    assert counted(lambda: (2 * scores) @ v) == (3 * 2, 0)


def test_batch_normalisation_folds_away():
    norm = nn.BatchNorm2d(3).eval()
    assert counted(lambda: norm(torch.randn(2, 3, 4, 4))) == (0, 0)


def test_energy_is_the_sum_of_its_operations():
    activity = Activity(1, {"a": Layer(acs=2e6, macs=1e6, ann_macs=3e6), "b": Layer(acs=1e6)})
    assert activity.energy_uj == pytest.approx(3 * 0.9 + 4.6)
    assert activity.ann_energy_uj == pytest.approx(3 * 4.6)


@pytest.fixture
def lively(ours):
    """A Spikformer whose nodes all fire: thresholds far below what trained ones have."""

    def built(**options):
        network = ours(**options).eval()
        for module in network.modules():
            if isinstance(module, LIFNode):
                module.v_threshold = 0.01
        return network

    return built


def test_spikformer_multiplies_in_the_first_convolution_and_the_head_only(lively, images):
    activity = measure(lively(time_steps=2), [images[:3], images[3:]])
    assert activity.images == 4
    assert {name for name, layer in activity.layers.items() if layer.macs} == {"stem.stages.0", "head"}
    assert activity.layers["stem.stages.0"].macs == 16 * 16 * 3 * 4 * 9  # once for both time steps
    assert activity.layers["head"].macs == 32 * 10
    rest = [layer for name, layer in activity.layers.items() if name not in ("stem.stages.0", "head")]
    assert all(layer.acs > 0 and 0 < layer.firing_rate < 1 for layer in rest)


def test_operations_of_a_layer_follow_from_the_spikes_it_receives(lively, images):
    network = lively()
    activity = measure(network, [images])
    received = {}
    for name in ("blocks.1.mlp.first", "blocks.1.attention.projection"):

        def look(_module, args, name=name):
            received[name] = args[0].sum().item()

        network.get_submodule(name).register_forward_pre_hook(look)
    network(images)
    assert activity.layers["blocks.1.mlp.first"].acs * 4 == received["blocks.1.mlp.first"] * 128
    assert activity.layers["blocks.1.attention.projection"].acs * 4 == received["blocks.1.attention.projection"] * 32


def test_the_ann_is_dense_and_runs_once_whatever_the_time_steps(lively, images):
    one, four = (measure(lively(time_steps=steps), [images]).ann_macs for steps in (1, 4))
    stem = 9 * (256 * 3 * 4 + 256 * 4 * 8 + 256 * 8 * 16 + 64 * 16 * 32 + 16 * 32 * 32)
    block = 16 * (4 * 32 * 32 + 2 * 32 * 128) + 2 * 4 * 16 * 8 * 8
    assert one == four == stem + 2 * block + 32 * 10
