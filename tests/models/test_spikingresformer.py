import importlib.util
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, neuron
from torch import nn

from sage_snn import SAGE, LIFNode, find_blocks
from sage_snn.control import watching
from sage_snn.kernels import switched_off
from sage_snn.models import spikingresformer
from sage_snn.models.spikingresformer import FiringProduct
from sage_snn.signals import head_entropy

_spec = importlib.util.spec_from_file_location("resformer_twin", Path(__file__).with_name("spikingresformer_twin.py"))
_twin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_twin)

HEADS = (1, 2, 3)
SMALL = {"heads": HEADS, "head_width": 4, "time_steps": 2, "image_size": 8, "num_classes": 10}
FORMS = {"cifar": 8, "imagenet": 32}


def pair(form="cifar"):
    """Our network and the authors' structure with the same weights, in float64."""
    torch.manual_seed(0)
    size = FORMS[form]
    ours = spikingresformer(form=form, **SMALL | {"image_size": size}).double()
    for module in ours.modules():  # as they are initialised, too little fires in so small a network
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 2.0)
            nn.init.normal_(module.bias, 0.5)
    twin = _twin.SpikingResformerTwin(HEADS, 4, 2, 10, size, imagenet=form == "imagenet").double()
    state = {_twin.authors_name(name): tensor for name, tensor in ours.state_dict().items()}
    assert state.keys() == twin.state_dict().keys()
    twin.load_state_dict({name: tensor.view_as(twin.state_dict()[name]) for name, tensor in state.items()})
    for module in (*ours.modules(), *twin.modules()):
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # so that eval mode knows the first batches as training does
    return ours, twin


def inputs(size=8, batch=4):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64)
    return images, torch.randint(0, 10, (batch,), generator=generator)


def test_the_cifar_network_has_10_79_million_parameters():
    with torch.device("meta"):
        assert sum(p.numel() for p in timm.create_model("spikingresformer_cifar").parameters()) == 10_793_152


@pytest.mark.parametrize(
    ("size", "parameters", "normalisation"),
    [
        ("ti", 11_180_992, 39_680),
        ("s", 17_813_824, 52_352),
        ("m", 35_601_472, 77_696),
        ("l", 60_375_680, 104_704),
    ],
)
def test_the_imagenet_networks_have_their_sizes(size, parameters, normalisation):
    with torch.device("meta"):
        model = timm.create_model(f"spikingresformer_{size}")
    norms = sum(p.numel() for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())
    total = sum(p.numel() for p in model.parameters())
    assert (total, norms) == (parameters, normalisation)


def test_the_imagenet_form_takes_images_of_224_pixels():
    with torch.device("meta"):
        model = timm.create_model("spikingresformer_ti", time_steps=1)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "twins"])
@pytest.mark.parametrize("form", FORMS)
def test_logits_gradients_and_rates_are_those_of_the_authors_structure(form, kernels):
    ours, twin = pair(form)
    images, labels = inputs(FORMS[form])
    for step in range(2):  # the second begins with rates of the first
        batch = images.roll(step, -1)
        if kernels:
            logits = ours(batch)
            F.cross_entropy(logits, labels).backward()
        else:
            with switched_off():
                logits = ours(batch)
                F.cross_entropy(logits, labels).backward()
        wanted = twin(batch).mean(0)
        F.cross_entropy(wanted, labels).backward()
        functional.reset_net(twin)
        assert logits.std(0).max() > 1e-3  # images differ, so something fired
        torch.testing.assert_close(logits, wanted, rtol=1e-9, atol=1e-9)
    gradients, buffers = dict(twin.named_parameters()), dict(twin.named_buffers())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[_twin.authors_name(name)].grad, rtol=1e-9, atol=1e-9)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, buffers[_twin.authors_name(name)].view_as(buffer), rtol=1e-9, atol=1e-9)
    ours.eval(), twin.eval()
    with torch.no_grad():
        logits = ours(images)
        assert logits.std(0).max() > 1e-3
        torch.testing.assert_close(logits, twin(images).mean(0), rtol=1e-9, atol=1e-9)


def test_the_product_is_scaled_by_the_rate_of_the_spikes():
    """Worked out by hand: half of 2 x 4 spikes in head one, a quarter in head two, four products to a sum."""
    product = FiringProduct(2, lambda: nn.Identity())
    spikes = torch.tensor([[[1.0, 1, 0, 0], [0, 0, 1, 1]], [[1, 0, 0, 0], [0, 1, 0, 0]]]).view(1, 1, 2, 2, 4)
    scaled = product(spikes, torch.ones(1, 1, 2, 4, 1))
    torch.testing.assert_close(product.rate, torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(scaled.flatten(), torch.tensor([2 / 2**0.5, 2 / 2**0.5, 1.0, 1.0]))
    product(torch.ones_like(spikes), torch.ones(1, 1, 2, 4, 1))
    torch.testing.assert_close(product.rate, torch.tensor([0.5 * 0.999 + 0.001, 0.25 * 0.999 + 0.001]))
    product.eval()(torch.zeros_like(spikes), torch.ones(1, 1, 2, 4, 1))
    assert product.rate[0] > 0.5  # and rest in eval mode


def test_heads_that_never_fired_give_no_infinities():
    product = FiringProduct(2, lambda: nn.Identity())
    assert not product(torch.zeros(1, 1, 2, 3, 4), torch.randn(1, 1, 2, 4, 5)).any()
    untrained = spikingresformer(**SMALL).eval()
    assert untrained(torch.randn(2, 3, 8, 8)).isfinite().all()


def test_six_nodes_per_block_with_the_authors_constants():
    model = spikingresformer(**SMALL)
    blocks = find_blocks(model)
    assert [len(block.neurons) for block in blocks] == [6] * 6
    assert [len(block.attention) for block in blocks] == [3] * 6
    assert [block.heads for block in blocks] == [1, 2, 2, 3, 3, 3]
    nodes = [m for m in model.modules() if isinstance(m, LIFNode)]
    assert len(nodes) == 6 * 6 + 2
    assert {type(n.surrogate_function).__name__ for n in nodes} == {"ATan"}
    assert {(n.tau, n.v_threshold, n.detach_reset, n.surrogate_function.alpha) for n in nodes} == {
        (2.0, 1.0, True, 2.0)
    }
    assert len({id(n.surrogate_function) for n in nodes}) == len(nodes)


class Recorder:
    """A signal that keeps what it is given."""

    def __init__(self):
        self.calls = []

    def __call__(self, q, k, scale):
        self.calls.append((q, k, scale))
        return torch.zeros(q.shape[2], dtype=torch.float64)


@pytest.mark.parametrize("whose", ["ours", "the authors'"])
def test_sage_is_given_the_two_operands_of_the_map_that_the_network_fires(whose):
    """In the first pass and in a later one, where the rates are those of before, moved by this pass."""
    ours, twin = pair()
    model = ours if whose == "ours" else twin
    maps, signal = [], Recorder()
    for module in model.modules():
        if hasattr(module, "activation_attn"):
            module.activation_attn.register_forward_hook(lambda m, i, o: maps.append(i[0].transpose(-1, -2)))
        elif hasattr(module, "key_value"):
            module.map.lif.register_forward_hook(lambda m, i, o: maps.append(i[0]))
    with SAGE(model, warmup_steps=0, signal=signal) as sage:
        for step in range(2):
            model(inputs()[0].roll(step, -1))
            functional.reset_net(model)
            sage.step()
    assert len(signal.calls) == len(maps) == 12
    for (q, k, scale), formed in zip(signal.calls, maps, strict=True):
        assert ((q == 0) | (q == 1)).all()
        torch.testing.assert_close(scale * q @ k.transpose(-1, -2), formed, rtol=1e-9, atol=1e-9)
    assert [q.shape[3] for q, _, _ in signal.calls[:6]] == [64, 16, 16, 4, 4, 4]
    assert [k.shape[3] for _, k, _ in signal.calls[:6]] == [4, 4, 4, 4, 4, 4]


def test_sage_reads_the_same_in_the_authors_modules_and_in_ours():
    read = []
    for model in pair():
        sage = SAGE(model, warmup_steps=0)
        model(inputs()[0])
        sage.step()
        assert [len(block.neurons) for block in sage.blocks] == [6] * 6  # with the feed-forward layer that follows
        assert [len(block.attention) for block in sage.blocks] == [3] * 6
        read.append(sage.head_entropy)
    for mine, theirs in zip(*read, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
        assert 0 < mine.min() < 1


def test_entropy_is_over_the_patches_that_a_pixel_asks():
    q, k = torch.ones(1, 1, 1, 5, 2), torch.zeros(1, 1, 1, 3, 2)
    k[0, 0, 0, 0] = 100.0  # all pixels ask the first patch
    assert head_entropy(q, k, 1.0).item() < 1e-12
    assert head_entropy(q, torch.zeros_like(k), 1.0).item() == pytest.approx(1.0)


def test_the_stage_with_one_head_keeps_its_base_slope_while_others_move():
    torch.manual_seed(0)
    model, _ = pair()
    sage = SAGE(model, warmup_steps=0)
    for step in range(5):
        model(inputs()[0].roll(step, -1))
        sage.step()
    assert sage.slopes[0] == 4
    assert (sage.slopes[1:] != 4).any()
    assert sage.dispersion[0] == 0
    first, others = sage.blocks[0].neurons, [b.neurons for b in sage.blocks[1:]]
    assert {float(node.slope()) for node in first} == {2.0}  # ATan's own, half of the law's base
    moved = [[float(node.slope()) for node in nodes] for nodes in others]
    assert [values[0] for values in moved] == pytest.approx((sage.slopes[1:] / 2).tolist())
    assert all(len(set(values)) == 1 for values in moved)


def test_a_copied_network_reads_its_own_rates():
    """A block of a copy must not look at the original's scale."""
    import copy

    model, _ = pair()
    blocks = find_blocks(model)
    network, copies = copy.deepcopy((model, blocks))
    assert copies[0].source.keeper is network.stages[0][0].attention.map


def test_an_image_is_the_same_as_equal_events_and_every_pass_starts_from_rest():
    images, _ = inputs()
    for options in ({}, {"neuron": neuron.LIFNode}):
        model = spikingresformer(**SMALL, **options).double()
        model(images)
        model.eval()
        with torch.no_grad():
            logits = model(images)
            torch.testing.assert_close(model(images.expand(2, -1, -1, -1, -1)), logits, rtol=1e-9, atol=1e-9)
            assert torch.equal(model(images), logits)
            steps = model.forward_steps(torch.stack([images, -images, images]))
        assert steps.shape == (3, 4, 10)


@pytest.mark.parametrize("channels", [1, 3])
def test_with_the_kernels_channels_lie_last_in_memory_between_layers(channels):
    model, seen = spikingresformer(**SMALL, in_channels=channels), []
    blocks = [block for stage in model.stages for block in stage]
    with watching((part, seen.append) for block in blocks for part in (block.attention, block.mlp)):
        model(torch.randn(2, channels, 8, 8))
    assert len(seen) == 12
    assert all(x.movedim(2, -1).is_contiguous() for x in seen)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": (1, 2)}, "a number for each of 3 stages"),
        ({"heads": (0, 2, 3)}, "heads of every stage must be at least 1"),
        ({"depths": (1, 2, 0)}, "depths of every stage must be at least 1"),
        ({"head_width": 0}, "head_width must be at least 1"),
        ({"image_size": 10}, "image_size must be a multiple of 4 in the cifar form"),
        ({"image_size": 40, "form": "imagenet"}, "multiple of 16 in the imagenet form"),
        ({"form": "mnist"}, "form must be 'cifar' or 'imagenet'"),
        ({"size": "xl"}, "size must be one of ti, s, m, l"),
    ],
)
def test_impossible_sizes_are_refused_with_the_cure(wrong, message):
    with pytest.raises(ValueError, match=message):
        spikingresformer(**SMALL | wrong)


def test_heads_that_do_not_divide_the_width_of_the_authors_network_are_refused_at_attach():
    _, twin = pair()
    twin.layers[1][1].num_heads = 3
    with pytest.raises(ValueError, match="3 heads do not divide its 8 channels"):
        SAGE(twin, warmup_steps=0)
