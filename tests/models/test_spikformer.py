import copy
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn

from sage_snn import LIFNode
from sage_snn.control import watching
from sage_snn.layers import NormLIF
from sage_snn.models import spikformer

SMALL = {"depth": 2, "dim": 32, "heads": 4, "time_steps": 3, "image_size": 16}


def stock_node(**options):
    return neuron.LIFNode(surrogate_function=surrogate.Sigmoid(4.0), **options)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 9_324_730), (100, 9_359_380)])
def test_4_384_has_the_published_number_of_parameters(classes, parameters):
    with torch.device("meta"):
        model = spikformer(num_classes=classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_imagenet_form_8_512_has_the_published_29_68_million():
    with torch.device("meta"):
        model = timm.create_model("spikformer_8_512")
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(p.numel() for p in model.parameters()) == 29_689_384


def test_seven_nodes_per_block_five_in_the_stem_with_the_authors_constants():
    model = spikformer(depth=3, dim=32, heads=2)
    nodes = [m for m in model.modules() if isinstance(m, LIFNode)]
    assert len(nodes) == 3 * 7 + 5
    assert [b.attention.lif.v_threshold for b in model.blocks] == [0.5] * 3
    assert sum(n.v_threshold == 1.0 for n in nodes) == len(nodes) - 3
    for n in nodes:
        assert (n.tau, n.decay_input, n.v_reset, n.detach_reset, n.surrogate_function.alpha) == (
            2.0,
            True,
            0.0,
            True,
            4.0,
        )


def test_timm_creates_it_and_takes_timms_names():
    model = timm.create_model("spikformer_4_384", num_classes=7, in_chans=1, img_size=16, dim=32, heads=2, depth=1)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)
    with pytest.raises(ValueError, match="load_official_state_dict"):
        timm.create_model("spikformer_4_384", pretrained=True)


@pytest.mark.parametrize("patch", [1, 2, 4, 8, 16])
def test_patch_size_sets_the_number_of_tokens(patch):
    model = spikformer(depth=1, dim=16, heads=2, time_steps=1, image_size=16, patch_size=patch)
    assert model.stem(torch.randn(1, 2, 3, 16, 16)).shape == (1, 2, 16, (16 // patch) ** 2)


def test_an_image_is_the_same_as_equal_events():
    model = spikformer(**SMALL).eval()
    images = torch.randn(2, 3, 16, 16)
    events = images.expand(3, -1, -1, -1, -1)
    assert torch.equal(model(images), model(events))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("events", [False, True])
def test_with_the_kernels_channels_lie_last_in_memory_all_the_way(channels, events):
    model, seen = spikformer(**SMALL, in_channels=channels), []
    with watching((module, seen.append) for module in model.modules() if isinstance(module, LIFNode)):
        model(torch.randn(*[3] * events, 2, channels, 16, 16))
    assert len(seen) == 5 + 2 * 7
    assert all(spikes.movedim(2, -1).is_contiguous() for spikes in seen[channels == 1 :])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64])
def test_events_may_be_counted_in_whole_numbers(dtype):
    torch.manual_seed(0)
    model = spikformer(depth=1, dim=16, heads=2, image_size=8, patch_size=2)
    events = torch.randint(0, 2, (3, 2, 3, model.image_size, model.image_size))
    assert torch.equal(model(events.to(dtype)), model(events.float()))


def test_the_mean_of_the_steps_is_the_answer_up_to_rounding():
    torch.manual_seed(0)
    model = spikformer(depth=1, dim=16, heads=2, image_size=8, patch_size=2, time_steps=3).double()
    images = 3 * torch.randn(4, 3, 8, 8, dtype=torch.float64)
    steps = model.forward_steps(images)
    assert steps.shape == (3, 4, 10)
    assert torch.equal(steps, model(images, steps=True))
    assert torch.allclose(steps.mean(0), model(images), atol=1e-12)
    assert not torch.equal(steps[0], steps[1])


def test_events_may_have_any_number_of_time_steps():
    model = spikformer(**SMALL).eval()
    assert model(torch.randn(5, 2, 3, 16, 16)).shape == (2, 10)


@pytest.mark.parametrize("form", ["cifar", "imagenet"])
@pytest.mark.parametrize("make", [None, stock_node], ids=["ours", "stock"])
def test_every_forward_pass_starts_from_rest(form, make):
    options = {} if make is None else {"neuron": make}
    model = spikformer(**SMALL, form=form, **options).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(model(images), model(images))


@pytest.mark.parametrize("form", ["cifar", "imagenet"])
def test_stock_neurons_and_ours_agree_in_float64(form):
    torch.manual_seed(0)
    ours = spikformer(**SMALL, form=form).double()
    stock = spikformer(**SMALL, form=form, neuron=stock_node).double()
    stock.load_state_dict(ours.state_dict())
    images, labels = torch.randn(4, 3, 16, 16).double() * 2, torch.randint(0, 10, (4,))
    gradients = []
    for model in (ours, stock):
        logits = model(images)
        F.cross_entropy(logits, labels).backward()
        gradients.append([logits.detach(), *(p.grad for p in model.parameters())])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_stock_neurons_and_ours_agree_in_float32_by_counting_spikes():
    """Layer by layer on the same input: torch's own BatchNorm rounds otherwise, and one spike moves many after it."""
    torch.manual_seed(0)
    ours, stock = spikformer(**SMALL), spikformer(**SMALL, neuron=stock_node)
    stock.load_state_dict(ours.state_dict())
    partners, differ, fired = dict(stock.named_modules()), [], []
    for name, module in ours.named_modules():
        if isinstance(module, NormLIF):
            partner = partners[name]

            def compare(_module, inputs, spikes, partner=partner):
                differ.append((partner(*inputs) != spikes).flatten())
                fired.append(spikes.flatten())
                functional.reset_net(partner)

            module.register_forward_hook(compare)
    images = torch.randn(3, 64, 3, 16, 16) * 2
    with torch.no_grad():
        logits = [model(images) for model in (ours, stock)]
    assert len(differ) == 5 + 2 * 6
    assert torch.cat(fired).mean() > 0.01
    assert torch.cat(differ).double().mean() <= 1e-5
    assert (logits[0].argmax(1) == logits[1].argmax(1)).double().mean() >= 0.99


def membranes(unit, x):
    """Distance to the threshold at every step, in float64 and without a kernel."""
    unit = copy.deepcopy(unit).double()
    currents = unit.norm(unit.synapse(x.double().flatten(0, 1))).unflatten(0, x.shape[:2])
    v, distances = torch.zeros_like(currents[0]), []
    for current in currents:
        h = v + (current - v) / unit.lif.tau
        distances.append(h - unit.lif.v_threshold)
        v = torch.where(h >= unit.lif.v_threshold, 0.0, h)
    return torch.stack(distances)


def test_every_unit_differs_from_stock_neurons_only_at_the_threshold_in_float32():
    torch.manual_seed(0)
    ours, stock = spikformer(**SMALL), spikformer(**SMALL, neuron=stock_node)
    stock.load_state_dict(ours.state_dict())
    seen = []
    units = [name for name, module in stock.named_modules() if isinstance(module, NormLIF)][1:]  # the first sees images
    for name in units:
        stock.get_submodule(name).register_forward_hook(lambda m, a, out, name=name: seen.append((name, a[0], out)))
    with torch.no_grad():
        stock(torch.randn(32, 3, 16, 16) * 2)
        different = places = 0
        for name, x, spikes in seen:
            unit = ours.get_submodule(name)
            assert unit.why_not_fused() is None
            distances = membranes(unit, x)
            wrong = unit(x) != spikes
            assert (distances[wrong].abs() < 1e-5).all()
            different, places = different + int(wrong.sum()), places + wrong.numel()
    assert len(seen) == len(units)
    assert different <= 1e-5 * places


def test_only_linear_maps_get_the_truncated_normal():
    cifar, imagenet = spikformer(dim=64, heads=4), spikformer(dim=64, heads=4, form="imagenet")
    for model in (cifar, imagenet):
        assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.2)
        assert not model.head.bias.any()
    query = cifar.blocks[0].attention.query.synapse
    assert query.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not query.bias.any()
    assert imagenet.blocks[0].attention.query.synapse.weight.std() > 0.05
    assert imagenet.blocks[0].attention.query.synapse.bias is None


def test_parameters_do_not_depend_on_time_steps_or_neuron():
    keys = set(spikformer(**SMALL).state_dict())
    assert keys == set(spikformer(**SMALL | {"time_steps": 1}, neuron=stock_node).state_dict())


def test_a_neuron_class_of_ones_own_gets_threshold_and_reset():
    class Mine(LIFNode):
        pass

    model = spikformer(**SMALL, neuron=partial(Mine, carry_state=False))
    assert isinstance(model.blocks[0].attention.lif, Mine)
    assert model.blocks[0].attention.lif.v_threshold == 0.5
    assert model.blocks[0].attention.lif.detach_reset is True


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 5}, "5 heads do not divide a width of 32"),
        ({"dim": 20, "heads": 2}, "multiple of 8"),
        ({"patch_size": 3}, "patch_size must be 1, 2, 4, 8 or 16"),
        ({"time_steps": 0}, "time_steps must be at least 1"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"form": "mnist"}, "form must be 'cifar' or 'imagenet'"),
        ({"image_size": 2}, "smaller than a patch"),
    ],
)
def test_impossible_sizes_are_refused_with_the_reason(wrong, message):
    with pytest.raises(ValueError, match=message):
        spikformer(**SMALL | wrong)


@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (2, 3, 32, 32), (3, 16, 16)])
def test_images_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match="in_channels and image_size"):
        spikformer(**SMALL)(torch.zeros(shape))


def test_token_maps_are_linear_layers_over_channels():
    model = spikformer(**SMALL)
    synapse = model.blocks[0].mlp.first.synapse
    x = torch.randn(2, 32, 5)
    expected = F.linear(x.transpose(1, 2), synapse.weight.squeeze(-1), synapse.bias).transpose(1, 2)
    assert isinstance(synapse, nn.Conv1d)
    torch.testing.assert_close(synapse(x), expected)


def test_timm_is_told_where_features_are():
    with pytest.raises(ValueError, match=r"call model\.forward_features"):
        timm.create_model("spikformer_4_256", features_only=True)
