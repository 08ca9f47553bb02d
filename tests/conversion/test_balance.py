import pytest
import torch
from torch import nn

from sage_snn.conversion import balance_thresholds
from sage_snn.models import ResNet, resnet20, vgg11
from sage_snn.models.convolution import no_norm
from sage_snn.neurons import DietLIF, RateIF, STDBNode

# Two images, the same at each of four steps: (T, B, 1).
IMAGES = torch.tensor([[1.0], [0.5]]).expand(4, 2, 1)


def two_layers(node):
    network = nn.Sequential(nn.Linear(1, 1, bias=False), node(), nn.Linear(1, 1, bias=False), node())
    with torch.no_grad():
        network[0].weight.fill_(2.0)
        network[2].weight.fill_(3.0)
    return network.train()


def test_thresholds_are_the_largest_currents_layer_by_layer():
    network = two_layers(RateIF)
    # Currents 2 and 1 arrive first. With threshold 2 the first image fires at every step, as high as 2: 3 * 2 = 6.
    assert balance_thresholds(network, IMAGES) == {"1": 2.0, "3": 6.0}
    assert network.training
    assert [float(node.threshold) for node in network[1::2]] == [2.0, 6.0]


def test_spikes_of_height_one_and_delayed_ones_count_as_they_are():
    # Diet fires above its threshold: 2, 4 > 2 and so on; its spikes are 1 high, so 3 arrives.
    assert balance_thresholds(two_layers(DietLIF), IMAGES) == {"1": 2.0, "3": 3.0}
    assert balance_thresholds(two_layers(STDBNode), IMAGES) == {"1": 2.0, "3": 3.0}


def test_a_percentile_and_a_factor_lower_them_after_the_layers_are_balanced():
    # Half of the currents are 1, half 2: their median lies between. With threshold 1.5 the first image, of current 2,
    # has the membranes 2, 2.5, 3 - 1.5 = ..., and fires always; the second, of current 1, at steps 2, 3 and not 1, 4:
    # 1, 2 (fires), 1.5 (fires), 1. Six spikes of eight carry 3 * 1.5 = 4.5, so their median is 4.5.
    assert balance_thresholds(two_layers(RateIF), IMAGES, percentile=50) == {"1": 1.5, "3": 4.5}
    assert balance_thresholds(two_layers(RateIF), IMAGES, factor=0.5) == {"1": 1.0, "3": 3.0}


def test_in_turn_a_layer_is_balanced_for_the_spikes_of_lowered_thresholds():
    # With threshold 2 / 2 the first image still fires at every step, now as high as 1: 3 arrives, of which half is 1.5.
    assert balance_thresholds(two_layers(RateIF), IMAGES, factor=0.5, in_turn=True) == {"1": 1.0, "3": 1.5}


def test_averaged_currents_are_those_of_each_neuron_over_time():
    # The median of the mean currents 2 and 1 is 1.5. Then the first image fires at every step, the second at steps 2
    # and 3 (see above): 4.5 and 4.5 / 2 arrive in the mean.
    network = two_layers(RateIF)
    assert balance_thresholds(network, IMAGES, percentile=50, averaged=True) == {"1": 1.5, "3": 3.375}
    assert balance_thresholds(network, IMAGES, averaged=True) == {"1": 2.0, "3": 6.0}


def test_our_networks_are_balanced_with_as_many_steps_as_asked():
    torch.manual_seed(0)
    network = resnet20(width=0.25, activation=RateIF, time_steps=4, image_size=8)
    seen = []
    network.stem[0].lif.register_forward_hook(lambda _module, _args, spikes: seen.append(len(spikes)))
    thresholds = balance_thresholds(network, torch.randn(4, 3, 8, 8), time_steps=6)
    assert seen == [6]
    assert network.time_steps == 4
    assert len(thresholds) == sum(isinstance(module, RateIF) for module in network.modules())
    assert all(value > 0 for value in thresholds.values())


@pytest.mark.parametrize("node", [RateIF, DietLIF])
def test_a_balanced_residual_block_answers_like_that_of_the_ann(node):
    torch.manual_seed(0)
    options = {"image_size": 8, "norm": no_norm, "flat": True}
    ann = ResNet([4], [4], [1], activation=nn.ReLU, time_steps=1, **options).eval()
    snn = ResNet([4], [4], [1], activation=node, time_steps=600, **options).eval()
    nn.init.zeros_(ann.head.bias)  # spikes that are 1 high have another measure than a bias
    snn.load_state_dict(ann.state_dict(), strict=False)
    images = torch.randn(8, 3, 8, 8)
    balance_thresholds(snn, images)
    with torch.no_grad():
        expected, answers = ann(images), snn(images)
    assert torch.corrcoef(torch.stack([expected.flatten(), answers.flatten()]))[0, 1] > 0.999


def test_what_cannot_be_balanced_says_how():
    with pytest.raises(ValueError, match=r"VGG has no neuron whose threshold could be balanced; build it with RateIF"):
        balance_thresholds(vgg11(width=0.125), torch.zeros(1, 3, 32, 32))
    for nothing in (None, torch.zeros(0, 1)):
        with pytest.raises(ValueError, match="balancing needs images to see currents on"):
            balance_thresholds(two_layers(RateIF), nothing)
    with pytest.raises(ValueError, match="no current above zero arrives at 1 within 4 steps, so it has no threshold"):
        balance_thresholds(two_layers(RateIF), -IMAGES)
