import collections
import copy
import importlib.util

import onnx
import pytest
import torch
from safetensors.torch import load_file
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn
from typer.testing import CliRunner

from sage_snn import SAGE, LIFNode
from sage_snn.cli import app
from sage_snn.deploy import ExportError, accelerate, export, fuse
from sage_snn.deploy.plain import PlainLIF, plain
from sage_snn.encoding import SignedPoisson
from sage_snn.models import load_official_state_dict, vgg11
from sage_snn.models.vgg import VGG
from sage_snn.neurons import DietLIF, RateIF, STDBNode


@pytest.fixture(scope="module")
def network():
    """A Spikformer whose nodes fire and whose BatchNorm has seen data."""
    from sage_snn.models import spikformer

    torch.manual_seed(0)
    sizes = {"depth": 2, "dim": 16, "heads": 2, "time_steps": 2, "image_size": 8, "patch_size": 2, "in_channels": 1}
    model = spikformer(**sizes)
    for module in model.modules():
        if isinstance(module, LIFNode):
            module.v_threshold = 0.3
    with torch.no_grad():
        for _ in range(30):
            model(torch.randn(32, 1, 8, 8))
    return model.train()


@pytest.fixture(scope="module")
def many():
    return torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exported(network, many, tmp_path_factory):
    """ONNX files of the network, plain and with a policy attached."""
    folder = tmp_path_factory.mktemp("onnx")
    plain = export(network, folder / "plain.onnx", "onnx", many[:1])
    with SAGE(network, warmup_steps=0):
        attached = export(network, folder / "attached.onnx", "onnx", many[:4])
    return plain, attached


def run_onnx(path, images):
    """What the ONNX file answers."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images.numpy()})


def agreement(model, path, images):
    """Share of the images that the ONNX file puts into the class that the model does."""
    (logits,) = run_onnx(path, images)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(images).argmax(-1)
    return float((torch.from_numpy(logits).argmax(-1) == expected).double().mean())


def test_onnx_gives_the_same_classes_for_any_batch(network, many, exported):
    for path in exported:
        assert agreement(network, path, many) >= 0.99
        assert agreement(network, path, many[:1]) == 1.0
    with torch.no_grad():
        assert len(network.eval()(many).argmax(1).unique()) > 1  # or agreeing would mean nothing
    network.train()


@pytest.fixture(scope="module")
def counting(network, many, tmp_path_factory):
    """An ONNX file with int8 weights."""
    return export(network, tmp_path_factory.mktemp("int8") / "a.onnx", "onnx", many[:1], {"T": 2}, weights="int8")


def test_onnx_with_int8_weights_agrees_with_the_network_that_counts(network, many, counting):
    rounded = fuse(network, weights="int8")
    for images in (many, many[:1]):
        assert agreement(rounded, counting, images) >= 0.99
    (logits,) = run_onnx(counting, many)
    with torch.no_grad():
        same = (torch.from_numpy(logits) - rounded(many)).abs().amax(1) < 1e-5
    assert same.double().mean() >= 0.99  # but for images in which a membrane came to the threshold but for rounding


def test_onnx_with_int8_weights_counts_in_whole_numbers_and_is_smaller(network, exported, counting):
    graph = onnx.load(counting).graph
    kinds = collections.Counter(node.op_type for node in graph.node)
    assert {node.domain for node in graph.node} == {""}
    assert kinds["ConvInteger"] == 4  # the first of five sees the image
    assert kinds["MatMulInteger"] == 2 * 6
    assert kinds["Conv"] == 1
    held = [sum(len(t.raw_data) for t in onnx.load(path).graph.initializer) for path in (exported[0], counting)]
    assert held[1] < 0.5 * held[0]


def test_int8_is_refused_by_other_formats(network, many, tmp_path):
    with pytest.raises(ExportError, match="int8 weights are for ONNX files"):
        export(network, tmp_path / "a.safetensors", "safetensors", many[:1], weights="int8")


def test_onnx_files_say_nothing_of_the_code_they_came_from(exported):
    data = exported[0].read_bytes()
    assert b"stack_trace" not in data
    assert b"sage_snn" not in data


def test_onnx_has_standard_operations_only_and_no_trace_of_a_policy(exported):
    kinds = []
    for path in exported:
        graph = onnx.load(path).graph
        assert {node.domain for node in graph.node} == {""}
        kinds.append(collections.Counter(node.op_type for node in graph.node))
    assert kinds[0] == kinds[1]


def test_onnx_names_its_ends_and_leaves_the_batch_open(exported):
    graph = onnx.load(exported[0]).graph
    (images,), (logits,) = graph.input, graph.output
    assert (images.name, logits.name) == ("images", "logits")
    shape = [dim.dim_param or dim.dim_value for dim in images.type.tensor_type.shape.dim]
    assert shape == ["batch", 1, 8, 8]


def test_exporting_leaves_the_model_alone(network, exported):
    assert network.training
    assert all(type(module) is not PlainLIF for module in network.modules())
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("decay_input", [True, False])
@pytest.mark.parametrize("v_reset", [None, 0.0, -0.2])
def test_the_plain_node_fires_like_the_real_one(decay_input, v_reset):
    node = LIFNode(tau=3.0, decay_input=decay_input, v_threshold=0.7, v_reset=v_reset, step_mode="m", carry_state=False)
    currents = 2 * torch.randn(5, 4, 100)
    spikes = PlainLIF(node)(currents)
    assert torch.equal(spikes, node(currents))
    assert 0 < spikes.mean() < 1


OTHERS = {
    "rate": lambda: RateIF(0.7),
    "half": lambda: RateIF(0.7, start=0.5),
    "diet": lambda: DietLIF(0.7, 0.9),
    "stdb": lambda: STDBNode(0.7, 0.9),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_plain_twins_of_other_nodes_fire_like_them(kind):
    node, currents = OTHERS[kind](), torch.randn(9, 4, 100) + 0.3
    with torch.no_grad():
        spikes = plain(node)(currents)
        assert torch.equal(spikes, node(currents))
    assert 0 < spikes.count_nonzero() < spikes.numel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_onnx_holds_networks_of_other_nodes(kind, tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 40), OTHERS[kind](), nn.Linear(40, 30), OTHERS[kind](), nn.Linear(30, 5))
    sequences = 2 * torch.randn(8, 200, 2, 2, 6)  # (T, B, ...): the batch is left open
    path = export(network, tmp_path / "a.onnx", "onnx", sequences[:, :2])
    (answers,) = run_onnx(path, sequences)
    with torch.no_grad():
        expected = network(sequences)
    assert expected.std() > 0.05
    differ = (torch.from_numpy(answers) - expected).abs().amax((0, 2, 3, 4)) > 1e-4
    assert differ.double().mean() <= 0.01  # sequences in which a membrane came to the threshold but for rounding


@pytest.mark.slow
def test_onnx_holds_a_converted_network(tmp_path):
    torch.manual_seed(0)
    sizes = {"time_steps": 3, "image_size": 4, "in_channels": 1, "activation": lambda: RateIF(2.0, start=0.5)}
    network, images = VGG([6, "pool", 6], 12, **sizes), torch.randn(300, 1, 4, 4)
    for linear in (network.first, network.second, network.head):
        nn.init.normal_(linear.weight)
    with torch.no_grad():
        for _ in range(30):
            network(images)  # statistics of BatchNorm
    network.eval()
    path = export(network, tmp_path / "a.onnx", "onnx", images[:2])
    assert agreement(network, path, images) >= 0.99
    with torch.no_grad():
        assert len(network(images).argmax(1).unique()) > 1  # or agreeing would mean nothing


@pytest.mark.slow
def test_draws_are_refused_by_onnx_and_their_spikes_taken(tmp_path):
    torch.manual_seed(0)
    options = {"width": 0.0625, "image_size": 8, "time_steps": 16, "activation": lambda: STDBNode(0.1)}
    network, images = vgg11(encoding=SignedPoisson(), **options).eval(), torch.randn(6, 3, 8, 8)
    with pytest.raises(
        ExportError, match=r"encoding draws spikes at random.*give an example of events \(T, B, C, H, W\)"
    ):
        export(network, tmp_path / "a.onnx", "onnx", images)
    spikes = network.encoding(images, 16)
    (answers,) = run_onnx(export(network, tmp_path / "a.onnx", "onnx", spikes), spikes)
    assert torch.allclose(torch.from_numpy(answers), network(images), atol=1e-4)
    assert torch.from_numpy(answers).std(0).any()  # images are told apart


def test_nir_names_the_nodes_that_it_cannot_hold(tmp_path):
    with pytest.raises(ExportError, match="nothing for DietLIF, RateIF, STDBNode"):
        export(nn.Sequential(RateIF(), DietLIF(), STDBNode()), tmp_path / "a.nir", "nir", torch.rand(2, 1, 3))


def test_nodes_with_state_between_calls_are_refused_by_onnx(tmp_path):
    single = nn.Sequential(nn.Linear(3, 3), RateIF(step_mode="s"))
    with pytest.raises(ExportError, match="1 is a RateIF in step mode 's'"):
        export(single, tmp_path / "a.onnx", "onnx", torch.rand(2, 3))
    chain = nn.Sequential(nn.Linear(3, 3), LIFNode(step_mode="s"))
    with pytest.raises(ExportError, match="1 is a LIFNode in step mode 's'"):
        export(chain, tmp_path / "a.onnx", "onnx", torch.rand(2, 3))


def test_safetensors_are_the_state_dict(network, many, tmp_path):
    with SAGE(network, warmup_steps=0):
        loaded = load_file(export(network, tmp_path / "deep" / "w.safetensors", "safetensors", many[:1]))
    assert loaded.keys() == network.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())


def test_official_weights_carry_the_authors_names(network, many, tmp_path, ours):
    loaded = torch.load(export(network, tmp_path / "w.pth", "official", many[:1]), weights_only=True)
    assert {"patch_embed.proj_conv.weight", "block.1.attn.q_linear.weight", "block.0.norm1.weight"} <= loaded.keys()
    other = ours(dim=16, heads=2, image_size=8, patch_size=2, in_channels=1)
    load_official_state_dict(other, loaded)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), network.parameters(), strict=True))


def test_official_names_are_for_a_spikformer(tmp_path):
    with pytest.raises(ExportError, match="this is a Linear; export to safetensors"):
        export(nn.Linear(2, 2), tmp_path / "w.pth", "official", torch.rand(1, 2))


def test_nir_holds_a_chain_of_our_nodes(tmp_path):
    import nir

    chain = nn.Sequential(
        layer.Conv2d(1, 2, 3, padding=1, step_mode="m"),
        LIFNode(tau=2.0, v_threshold=0.5, step_mode="m"),
        layer.Flatten(step_mode="m"),
        nn.Linear(32, 3),
        neuron.LIFNode(tau=3.0, step_mode="m"),
    )
    graph = nir.read(export(chain, tmp_path / "chain.nir", "nir", torch.rand(2, 1, 1, 4, 4)))
    kinds = collections.Counter(type(node).__name__ for node in graph.nodes.values())
    assert kinds == {"Conv2d": 1, "LIF": 2, "Flatten": 1, "Affine": 1, "Input": 1, "Output": 1}
    thresholds = {float(node.v_threshold.flat[0]) for node in graph.nodes.values() if isinstance(node, nir.LIF)}
    assert thresholds == {0.5, 1.0}
    assert type(chain[1]) is LIFNode


def test_nir_names_what_it_cannot_hold_and_the_way_out(network, many, tmp_path):
    with pytest.raises(ExportError) as raised:
        export(network, tmp_path / "a.nir", "nir", many[:1])
    message = str(raised.value)
    for part in ("BatchNorm2d", "SpikePool", "residual sums", "blocks.1.attention", "onnx or safetensors"):
        assert part in message
    assert not (tmp_path / "a.nir").exists()


def test_what_spikingjellys_exporter_refuses_is_told(tmp_path):
    chain = nn.Sequential(nn.Linear(3, 3), LIFNode(v_reset=None, step_mode="m"))
    with pytest.raises(ExportError, match=r"does not cover Sequential: .*soft reset"):
        export(chain, tmp_path / "a.nir", "nir", torch.rand(2, 1, 3))


@pytest.mark.parametrize("to", ["onnx", "nir"])
def test_a_missing_package_says_what_to_install(network, many, tmp_path, monkeypatch, to):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r'pip install "sage-snn\[export\]"'):
        export(network, tmp_path / "a", to, many[:1])


def test_an_unknown_format_names_the_known_ones(network, many, tmp_path):
    with pytest.raises(ExportError, match="onnx, nir, safetensors, official"):
        export(network, tmp_path / "a", "tflite", many[:1])


def test_an_unwritable_path_is_named(network, many, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ExportError, match=r"cannot write .*choose another path"):
        export(network, tmp_path / "file" / "w.safetensors", "safetensors", many[:1])


@pytest.fixture
def trained(ours, images):
    """BatchNorm has seen data, so that neurons fire in eval mode too."""
    return lively(ours(), images)


def lively(model, batch):
    """BatchNorm that knows the data and is shifted, so that many neurons fire in eval mode."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.bias.fill_(1.0)
        for _ in range(30):
            model(batch * 2)
            functional.reset_net(model)
    return model.eval()


def spikes_of(model, batch):
    seen = []
    nodes = [m for m in model.modules() if isinstance(m, neuron.LIFNode)]
    handles = [m.register_forward_hook(lambda m, a, out: seen.append(out.detach().flatten())) for m in nodes]
    with torch.no_grad():
        logits = model(batch)
    for handle in handles:
        handle.remove()
    functional.reset_net(model)
    return logits, torch.cat(seen)


@pytest.mark.parametrize("form", ["cifar", "imagenet"])
def test_the_deployment_form_fires_the_same_spikes(ours, images, form):
    model = lively(ours(form=form), images).double()
    logits, spikes = spikes_of(model, images.double() * 2)
    folded, folded_spikes = spikes_of(fuse(model), images.double() * 2)
    assert spikes.mean() > 0.01
    assert torch.equal(spikes, folded_spikes)
    torch.testing.assert_close(logits, folded, rtol=1e-9, atol=1e-9)


def test_the_deployment_form_has_no_batch_norm_and_no_gradient_and_the_model_is_untouched(trained):
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    fused = fuse(trained)
    norms = nn.modules.batchnorm._BatchNorm
    assert not any(isinstance(m, norms) for m in fused.modules())
    assert any(isinstance(m, norms) for m in trained.modules())
    assert not any(p.requires_grad for p in fused.parameters())
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


def test_an_image_runs_through_the_first_convolution_once(trained, images):
    calls = []
    fused = fuse(trained)
    for model in (trained, fused):
        model.stem.stages[0].synapse.register_forward_hook(lambda m, a, out: calls.append(len(a[0])))
        model(images)
    assert calls == [4, 4]


def test_spikingjellys_containers_are_folded_too(jelly, images):
    model = lively(jelly(), images).double()
    logits, spikes = spikes_of(model, images.double() * 2)
    folded, folded_spikes = spikes_of(fuse(model), images.double() * 2)
    assert spikes.mean() > 0.01
    assert torch.equal(spikes, folded_spikes)
    torch.testing.assert_close(logits, folded, rtol=1e-9, atol=1e-9)


def test_accelerated_nodes_are_the_same_objects_and_give_equal_gradients(jelly, images):
    plain, fast = jelly().double(), jelly().double()
    nodes = [m for m in fast.modules() if type(m) is neuron.LIFNode]
    hooked = []
    nodes[0].register_forward_hook(lambda *_: hooked.append(1))
    assert accelerate(fast) is fast
    assert all(type(node) is LIFNode for node in nodes)
    assert nodes == [m for m in fast.modules() if isinstance(m, neuron.LIFNode)]
    for model in (plain, fast):
        model(images.double() * 2).mean(0).square().sum().backward()
        functional.reset_net(model)
    assert hooked == [1]
    for mine, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def test_accelerated_synapses_are_driven_by_events_with_the_same_bits(tmp_path):
    torch.manual_seed(0)
    plain = nn.Sequential(
        layer.Conv2d(32, 64, 3, padding=1, bias=False, step_mode="m"),
        layer.BatchNorm2d(64, step_mode="m"),
        neuron.LIFNode(step_mode="m"),
        layer.SeqToANNContainer(nn.Conv2d(64, 32, 3, stride=2, padding=1), nn.Flatten()),
        layer.Linear(512, 40, step_mode="m"),
        nn.Linear(40, 33),
    )
    fast = accelerate(copy.deepcopy(plain))
    spikes = (torch.rand(80, 32, 8, 8) < 0.1).float().contiguous(memory_format=torch.channels_last)
    found = [model(spikes.unflatten(0, (2, 40))) for model in (plain, fast)]
    assert torch.equal(*found)
    assert found[0].std() > 0
    assert "Event" in str(fast[0](spikes.unflatten(0, (2, 40))).grad_fn.next_functions[0][0])
    assert [type(m).__name__ for m in (fast[0], fast[3][0], fast[4], fast[5])] == [
        *("JellyConv", "SpikeConv", "JellyLinear", "SpikeLinear")
    ]
    torch.save(fast, tmp_path / "fast.pt")
    functional.reset_net(fast)


@pytest.mark.parametrize("kind", [nn.Conv1d, layer.Conv1d])
def test_accelerated_maps_of_tokens_are_driven_by_events_where_channels_lie_last(kind):
    torch.manual_seed(0)
    synapse = accelerate(copy.deepcopy(plain := kind(128, 96, 1)))
    wider = accelerate(kind(128, 96, 3, padding=1))
    in_order = (torch.rand(8, 128, 64) < 0.1).float()
    last = in_order.transpose(1, 2).contiguous().transpose(1, 2)
    found, dense = synapse(last), synapse(in_order)
    assert "Event" in str(found.grad_fn.next_functions[0][0])
    assert torch.equal(dense, plain(in_order))
    torch.testing.assert_close(found, dense, rtol=1e-5, atol=1e-6)
    assert torch.equal(wider(last), wider(in_order))
    assert torch.equal(synapse(torch.ones(128, 3)), plain(torch.ones(128, 3))), "one image without a batch"


def test_nir_holds_what_was_accelerated(tmp_path):
    import nir

    chain = nn.Sequential(layer.Conv2d(1, 2, 3, padding=1, step_mode="m"), neuron.LIFNode(tau=2.0, step_mode="m"))
    graph = nir.read(export(accelerate(chain), tmp_path / "chain.nir", "nir", torch.rand(2, 1, 1, 4, 4)))
    assert {"Conv2d", "LIF"} <= {type(node).__name__ for node in graph.nodes.values()}
    assert type(chain[0]).__name__ == "JellyConv", "as it was before"


def test_sage_attaches_to_an_accelerated_model_with_tensor_slopes(jelly, images):
    model = accelerate(jelly())
    with SAGE(model, warmup_steps=0) as sage:
        model(images)
        sage.step()
        assert "10 nodes of ours, slope in a tensor" in sage.describe()


def test_accelerated_nodes_take_events_counted_in_whole_numbers():
    events = torch.randint(0, 3, (4, 2, 6), dtype=torch.uint8)
    expected = neuron.LIFNode(step_mode="m")(events)
    found = accelerate(nn.Sequential(neuron.LIFNode(step_mode="m")))(events)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_a_run_is_exported_with_int8_weights_from_the_command_line(tmp_path):
    sizes = {}
    for weights in ("float32", "int8"):
        path = tmp_path / f"{weights}.onnx"
        typed = ["export", "shipped:digits", "--to", "onnx", "--weights-as", weights, "--out", str(path)]
        result = CliRunner().invoke(app, typed)
        assert result.exit_code == 0, result.output
        sizes[weights] = path.stat().st_size
    (logits,) = run_onnx(tmp_path / "int8.onnx", torch.rand(3, 1, 8, 8))
    assert logits.shape == (3, 10)
    assert sizes["int8"] < 0.5 * sizes["float32"]
