import pytest
import torch
from spikingjelly.activation_based.op_counter import DispatchCounterMode
from torch import nn

from sage_snn.conversion import QCFS
from sage_snn.models import vgg16
from sage_snn.neurons import LIFNode, RateIF
from sage_snn.runs.energy import Activity, Layer, measure, spike_counters


def counted(operation, heights=(1.0,)):
    """(ACs, MACs) of one call."""
    synops, macs = spike_counters(heights)
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


def test_spikes_of_one_height_count_like_any():
    spikes = torch.tensor([[0.0, 0.7, 0.7], [0.7, 0.0, 0.0]])
    assert counted(lambda: nn.Linear(3, 7)(spikes), [1.0, 0.3, 0.7]) == (3 * 7, 0)
    assert counted(lambda: nn.Linear(3, 7)(spikes), [1.0, 0.3]) == (0, 2 * 21)  # nobody spikes that high
    assert counted(lambda: nn.Linear(3, 7)(3 * spikes), [1.0, 0.7]) == (3 * 3 * 7, 0)  # a sum of three trains


def test_a_spike_whose_height_is_a_whole_number_is_one_spike():
    spikes = torch.tensor([[0.0, 8.0, 8.0]])
    assert counted(lambda: nn.Linear(3, 7)(spikes), [1.0, 8.0]) == (2 * 7, 0)
    assert counted(lambda: nn.Linear(3, 7)(spikes / 4), [1.0, 8.0]) == (2 * 2 * 7, 0)  # a sum of spikes of height 1


def test_negative_spikes_count_each():
    convolution = nn.Conv2d(1, 6, 3, padding=1, bias=False)
    spikes = torch.zeros(1, 1, 5, 5)
    spikes[0, 0, 0, 0], spikes[0, 0, 2, 2] = -1, 1
    assert counted(lambda: convolution(spikes)) == ((4 + 9) * 6, 0)
    assert counted(lambda: nn.Linear(3, 7)(torch.tensor([[-1.0, 0.0, -2.0]]))) == (0, 21)  # not spikes of one height


@pytest.mark.parametrize("height", [1.0, 0.7])
def test_every_spike_of_a_pooling_window_counts(height):
    spikes = torch.zeros(1, 1, 4, 4)
    spikes[0, 0, :2, :2] = torch.tensor([[0.0, 1.0], [1.0, 1.0]])  # three in one window,
    spikes[0, 0, 3, 3] = 1  # one in another
    pooled = nn.AvgPool2d(2)(height * spikes)
    assert sorted(pooled.flatten().tolist()) == pytest.approx([0, 0, 0.25 * height, 0.75 * height])
    assert counted(lambda: nn.Conv2d(1, 6, 1)(pooled), [1.0, height]) == ((3 + 1) * 6, 0)


@pytest.mark.parametrize("steps", [3, 8])
def test_an_average_over_few_time_steps_counts_every_spike(steps):
    spikes = torch.zeros(steps, 2, 5)
    spikes[:, 0, 0] = spikes[0, 0, 1] = spikes[:-1, 1, 4] = 1
    assert counted(lambda: nn.Linear(5, 7)(0.7 * spikes.mean(0)), [0.7]) == (2 * steps * 7, 0)


@pytest.mark.parametrize("levels", [9, 16, 255])
def test_averages_over_many_spikes_and_grey_images_are_multiplied(levels):
    grey = torch.arange(levels + 1.0).unsqueeze(0) / levels
    assert counted(lambda: nn.Linear(levels + 1, 7)(grey)) == (0, 7 * (levels + 1))


def test_weights_of_few_values_are_no_spikes():
    linear, convolution = nn.Linear(3, 7, bias=False), nn.Conv2d(3, 7, 1, bias=False)
    nn.init.constant_(linear.weight, 0.5)
    nn.init.constant_(convolution.weight, 2.0)
    real = torch.tensor([[0.31, -2.7, 1.4]])
    assert counted(lambda: linear(real)) == (0, 21)
    assert counted(lambda: convolution(real[:, :, None, None])) == (0, 21)


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


def test_a_converted_network_is_counted_by_its_spikes():
    synapse = nn.Linear(4, 4, bias=False)
    synapse.weight.data = 0.5 * torch.eye(4)
    network = nn.Sequential(synapse, RateIF(1.5), nn.Linear(4, 3))
    # In four steps the four neurons reach 1.5 never, twice (at 1.6, and at 1.7 from 0.1), four times and never.
    activity = measure(network, [torch.tensor([-2.0, 1.6, 4.0, 0.6]).expand(4, 1, 4)])
    assert activity.layers["1"].firing_rate == 6 / 16
    assert activity.layers["2"].acs == 6 * 3
    assert activity.layers["0"].macs == activity.macs == 4 * 16


def test_of_a_converted_vgg_only_what_sees_the_image_multiplies():
    torch.manual_seed(0)
    network = vgg16(width=0.0625, image_size=32, time_steps=4, activation=lambda: RateIF(0.05 + torch.rand(()).item()))
    images = torch.randn(2, 3, 32, 32)
    for _ in range(20):
        network.train()(images)
    activity = measure(network, [images])
    assert [name for name, layer in activity.layers.items() if layer.macs] == ["layers.0"]
    pooled = {}
    network.layers[3].register_forward_pre_hook(lambda _module, args: pooled.update(into=args[0]))
    network(images)
    # A spike in the middle reaches 9 places of 8 channels; at the border of the 16 x 16 places fewer.
    counts = (pooled["into"] * 4 / network.layers[1].lif.threshold).round()
    inside, corner = counts[..., 1:-1, 1:-1].sum(), counts[..., ::15, ::15].sum()
    edges = counts.sum() - inside - corner
    assert activity.layers["layers.3"].acs * 2 == (9 * inside + 6 * edges + 4 * corner).item() * 8


def test_an_ann_of_few_levels_is_multiplied():
    ann = nn.Sequential(nn.Linear(4, 4), QCFS(levels=4, threshold=1.3), nn.Linear(4, 3))
    assert measure(ann, [torch.randn(1, 50, 4)]).macs == 16 + 12
