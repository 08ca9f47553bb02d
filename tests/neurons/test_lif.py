import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from spikingjelly.activation_based import functional, layer, monitor, neuron, nir_exchange, op_counter, surrogate
from torch import nn

from sage_snn.kernels.lif import LIF, Membrane, lif
from sage_snn.neurons import LIFNode, spikingjelly_nodes, surrogate_shape
from sage_snn.surrogate import SHAPES, LearntSlope, WrittenSlope, log_slope

T = 5
RESETS = [{"v_reset": 0.0}, {"v_reset": -0.2}, {"v_reset": None}]


def currents(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape or (T, 3, 40), generator=torch.Generator().manual_seed(seed), dtype=dtype) * 1.5 + 0.4


def run(node, x, step_mode="m"):
    """Spikes, last membrane and the gradient of the currents, of a loss that knows spikes and membrane."""
    functional.set_step_mode(node, step_mode)
    x = x.clone().requires_grad_()
    spikes = node(x) if step_mode == "m" else torch.stack([node(step) for step in x])
    weights = torch.cos(torch.arange(spikes.numel(), dtype=x.dtype)).view_as(spikes)
    ((weights * spikes).sum() + (node.v * weights[0]).sum()).backward()
    return spikes.detach(), node.v.detach(), x.grad


def assert_same(ours, theirs, tolerance=1e-9):
    assert ours[0].mean() > 0.02  # there is something to compare
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert torch.allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("detach_reset", [False, True])
@pytest.mark.parametrize("decay_input", [False, True])
@pytest.mark.parametrize("reset", RESETS, ids=str)
@pytest.mark.parametrize(("tau", "v_threshold"), [(2.0, 1.0), (1.3, 0.5), (10.0, 0.3)])
def test_node_equals_spikingjellys_in_float64(tau, v_threshold, reset, decay_input, detach_reset, step_mode):
    options = {"tau": tau, "v_threshold": v_threshold, **reset, "decay_input": decay_input}
    options["detach_reset"] = detach_reset
    assert_same(run(LIFNode(**options), currents(), step_mode), run(neuron.LIFNode(**options), currents(), step_mode))


@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("reset", RESETS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_node_equals_spikingjellys_for_every_surrogate(shape, reset, step_mode):
    function = getattr(surrogate, shape)(alpha=2.3)
    ours, theirs = (node(surrogate_function=function, **reset) for node in (LIFNode, neuron.LIFNode))
    assert_same(run(ours, currents(), step_mode), run(theirs, currents(), step_mode))


@pytest.mark.parametrize("reset", RESETS, ids=str)
def test_tensor_slope_equals_spikingjellys_alpha(reset):
    ours, theirs = LIFNode(**reset), neuron.LIFNode(surrogate_function=surrogate.Sigmoid(3.3), **reset)
    ours.slope = WrittenSlope(3.3)
    assert_same(run(ours, currents()), run(theirs, currents()))


@pytest.mark.parametrize("reset", RESETS, ids=str)
def test_node_equals_spikingjellys_in_float32_by_counting(reset):
    x = currents(4, 16, 8000, dtype=torch.float32)
    ours, theirs = (run(node(detach_reset=True, **reset), x) for node in (LIFNode, neuron.LIFNode))
    different = ours[0] != theirs[0]
    assert different.double().mean() <= 1e-5
    charged = LIF.apply(
        x,
        torch.full_like(x[0], reset["v_reset"] or 0.0),
        torch.tensor(4.0),
        Membrane(reset=reset["v_reset"]),
        "Sigmoid",
    )[2]
    first = different & (different.cumsum(0) == 1)  # later ones of the same neuron follow from it
    assert ((charged[first] - 1.0).abs() < 1e-5).all()
    same = ~different.any(0)
    assert torch.allclose(ours[2][:, same], theirs[2][:, same], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LIFNode, neuron.LIFNode])
def test_state_is_carried_until_reset_net(kind):
    node, x = kind(step_mode="m"), currents()
    whole = node(x)
    functional.reset_net(node)
    assert node.v == 0.0
    halves = torch.cat([node(x[:2]), node(x[2:])])
    assert torch.equal(halves, whole)


def test_node_that_carries_no_state_keeps_nothing():
    node, x = LIFNode(step_mode="m", carry_state=False), currents()
    first = node(x)
    assert node.v == 0.0
    assert torch.equal(node(x), first)
    assert not torch.equal(LIFNode(step_mode="m", carry_state=False)(x[2:]), first[2:])


def test_node_that_carries_no_state_rests_at_its_reset():
    node = LIFNode(step_mode="m", carry_state=False, v_reset=-0.3)
    node(currents())
    assert node.v == -0.3


def test_nodes_have_surrogates_of_their_own():
    assert LIFNode().surrogate_function is not LIFNode().surrogate_function
    assert LIFNode().surrogate_function.alpha == 4.0
    assert isinstance(LIFNode(), neuron.LIFNode)


@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("reset", RESETS, ids=str)
def test_stored_membranes_equal_spikingjellys(reset, step_mode):
    ours, theirs = LIFNode(store_v_seq=True, **reset), neuron.LIFNode(store_v_seq=True, **reset)
    assert_same(run(ours, currents(), step_mode), run(theirs, currents(), step_mode))
    assert ours.v_seq.shape == currents().shape
    assert torch.allclose(ours.v_seq, theirs.v_seq, rtol=0, atol=1e-12)
    functional.reset_net(ours)
    assert ours.v_seq is None


def networks(dtype=torch.float32):
    """A small convolutional network, once with each class of node and with the same weights."""
    torch.manual_seed(0)
    convolutions = [layer.Conv2d(1, 4, 3), layer.Conv2d(4, 2, 3)]
    for convolution in convolutions:
        nn.init.normal_(convolution.weight, std=0.7)
    for kind in (LIFNode, neuron.LIFNode):
        first, second = copy.deepcopy(convolutions)
        net = nn.Sequential(first, kind(), second, kind()).to(dtype)
        functional.set_step_mode(net, "m")
        yield net


def test_output_monitor_records_every_node():
    ours, theirs = networks(torch.float64)
    x = currents(T, 2, 1, 8, 8)
    recorded = []
    for net in (ours, theirs):
        with monitor.OutputMonitor(net, neuron.LIFNode) as records:
            net(x)
            assert records.monitored_layers == ["1", "3"]
            recorded.append([records["1"][0], records["3"][0]])
    assert recorded[0][0].sum() > 0
    assert all(torch.equal(a, b) for a, b in zip(*recorded, strict=True))


def test_monitors_and_hooks_see_normalised_currents(ours, images):
    expected, seen = [], []
    model = ours()
    model.stem.stages[0].norm.register_forward_hook(lambda norm, args, output: expected.append(output))
    model(images)
    model = ours()
    with monitor.InputMonitor(model, LIFNode) as records:
        model(images)
        seen.append(records["stem.stages.0.lif"][0])
    for kind in ("register_forward_hook", "register_forward_pre_hook"):
        model = ours()
        getattr(model.stem.stages[0].lif, kind)(lambda node, args, *output: seen.append(args[0]))
        model(images)
    assert len(seen) == 3
    assert all(torch.allclose(x.flatten(0, 1), expected[0], atol=1e-6) for x in seen)


class Zeros(LIFNode):
    def multi_step_functional_forward(self, inputs, states, **kwargs):
        return (torch.zeros_like(inputs[0]),), states


def test_a_subclass_with_a_forward_pass_of_its_own_is_obeyed(ours, images):
    model = ours(neuron=partial(Zeros, carry_state=False))
    with monitor.OutputMonitor(model, LIFNode) as records:
        model(images)
        assert len(records.records) > 10
        assert not any(spikes.any() for spikes in records.records)
    assert model.stem.stages[0].why_not_fused() == "Zeros has a forward pass of its own"


def test_overriding_what_would_never_be_called_is_refused():
    with pytest.raises(TypeError, match=r"Leaky\.neuronal_charge would never be called: override single_step"):

        class Leaky(LIFNode):
            def neuronal_charge(self, x):
                self.v = x


def test_attribute_monitor_records_stored_membranes():
    net = next(networks())
    net[1].store_v_seq = net[3].store_v_seq = True
    with monitor.AttributeMonitor("v_seq", pre_forward=False, net=net, instance=LIFNode) as records:
        net(currents(T, 2, 1, 8, 8, dtype=torch.float32))
        assert [r.shape for r in records.records] == [(T, 2, 4, 6, 6), (T, 2, 2, 4, 4)]


def test_op_counter_counts_the_same_synaptic_operations():
    x = (currents(T, 2, 1, 8, 8, dtype=torch.float32) > 0.5).float()
    counts = []
    for net in networks():
        counter = op_counter.SynOpCounter()
        with op_counter.DispatchCounterMode([counter]):
            net(x)
        counts.append(counter.get_counts())
    assert counts[0] == counts[1]
    assert all(sum(counts[0][f"Sequential.{i}"].values()) > 0 for i in (0, 2))


def nir_arrays(graph):
    return {
        (name, key): value
        for name, node in graph.nodes.items()
        for key, value in vars(node).items()
        if isinstance(value, np.ndarray)
    }


def test_nir_export_equals_that_of_spikingjellys_node():
    torch.manual_seed(0)
    linears = nn.Linear(6, 4), nn.Linear(4, 2)
    graphs = []
    for kind in (LIFNode, neuron.LIFNode):
        nodes = kind(tau=3.0, v_threshold=0.7), kind(decay_input=False, v_reset=-0.1)
        net = nn.Sequential(linears[0], nodes[0], linears[1], nodes[1])
        net(torch.rand(5, 6, requires_grad=True))  # a membrane with a graph does not hinder the export
        with spikingjelly_nodes(net):
            graphs.append(nir_exchange.export_to_nir(net, torch.rand(5, 6)))
    ours, theirs = map(nir_arrays, graphs)
    assert graphs[0].edges == graphs[1].edges
    assert [type(n) for n in graphs[0].nodes.values()] == [type(n) for n in graphs[1].nodes.values()]
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_network_has_its_own_nodes_again_after_an_export_that_fails():
    net = next(networks())
    with pytest.raises(TypeError, match="not subscriptable"), spikingjelly_nodes(net):
        type(net[1])[0]
    assert [type(net[1]), type(net[3])] == [LIFNode] * 2


def test_node_survives_copy_and_pickle():
    node = LIFNode(tau=3.0, step_mode="m", carry_state=False)
    node.slope = WrittenSlope(3.3)
    for twin in (copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert type(twin) is LIFNode
        assert_same(run_without_state(twin), run_without_state(node))


def run_without_state(node):
    x = currents().requires_grad_()
    spikes = node(x)
    (spikes * torch.cos(torch.arange(spikes.numel())).view_as(spikes)).sum().backward()
    return spikes.detach(), x.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("function", [surrogate.Sigmoid(), surrogate.QPseudoSpike()], ids=["ours", "foreign"])
def test_half_precision_currents_keep_a_float32_membrane(function, step_mode, dtype):
    x = currents(dtype=torch.float32).to(dtype)
    node, exact = LIFNode(surrogate_function=function), LIFNode(surrogate_function=function)
    spikes, v, gradient = run(node, x, step_mode)
    assert v.dtype == torch.float32
    assert spikes.dtype == gradient.dtype == dtype
    expected = run(exact, x.float(), step_mode)
    assert torch.equal(spikes.float(), expected[0])
    assert torch.equal(v, expected[1])


class Subclass(surrogate.Sigmoid):
    pass


FOREIGN = [surrogate.QPseudoSpike(), Subclass(2.5), surrogate.Sigmoid(2.5, spiking=False)]


@pytest.mark.parametrize("function", FOREIGN, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("step_mode", ["s", "m"])
def test_foreign_surrogate_falls_back_to_spikingjelly(function, step_mode):
    ours, theirs = LIFNode(surrogate_function=function), neuron.LIFNode(surrogate_function=function)
    assert surrogate_shape(ours) is None
    assert_same(run(ours, currents(), step_mode), run(theirs, currents(), step_mode))


@pytest.mark.parametrize(("live", "used_by_backward"), [(False, 4.0), (True, 8.0)])
def test_backward_of_the_node_uses_a_slope_written_after_forward_only_when_live(live, used_by_backward):
    node = LIFNode(step_mode="m", carry_state=False)
    node.slope = WrittenSlope(4.0, live=live)
    x = currents().requires_grad_()
    spikes = node(x)
    node.slope.tensor.fill_(8.0)
    spikes.sum().backward()
    plain = neuron.LIFNode(step_mode="m", surrogate_function=surrogate.Sigmoid(used_by_backward))
    y = currents().requires_grad_()
    plain(y).sum().backward()
    assert torch.allclose(x.grad, y.grad, rtol=0, atol=1e-12)


def test_slope_never_changes_spikes_or_membrane():
    x = currents()
    a, b = (lif(x, torch.zeros_like(x[0]), torch.tensor(slope), Membrane()) for slope in (3.0, 5.0))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def smooth(shape, x, slope):
    """The function that the defined gradient treats as the spike."""
    if shape == "SuperSpike":
        return slope * x / (1 + x.abs())
    return getattr(surrogate, shape).primitive_function(x.clone(), slope)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("reset", [0.0, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_slope_gradient_equals_finite_differences_of_the_smooth_spike(shape, reset, steps):
    x, membrane = currents(steps, 50), Membrane(reset=reset, detach_reset=True)
    slope = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    spikes, _, charged = LIF.apply(x, torch.zeros_like(x[0]), slope, membrane, shape)
    weights = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).view_as(x)
    (weights * spikes).sum().backward()
    step = 1e-6
    above, below = ((weights * smooth(shape, charged - 1.0, 1.7 + d)).sum() for d in (step, -step))
    assert slope.grad.item() == pytest.approx(((above - below) / (2 * step)).item(), rel=1e-6, abs=1e-7)


def straight_through(x, slope, membrane, shape):
    """The node as autograd sees it when each spike has the gradients of the smooth function."""
    v, spikes = torch.zeros_like(x[0]), []
    for t, current in enumerate(x):
        h = membrane.charge(current, v)
        soft = smooth(shape, h - membrane.threshold, slope[t] if slope.ndim else slope)
        spike = (h >= membrane.threshold).to(h) + soft - soft.detach()
        v = membrane.after(h, spike.detach() if membrane.detach_reset else spike)
        spikes.append(spike)
    return torch.stack(spikes), v


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("detach_reset", [False, True])
@pytest.mark.parametrize("reset", [0.0, -0.2, None])
@pytest.mark.parametrize("shape", ["Sigmoid", "ATan", "SoftSign", "SuperSpike", "Erf"])
def test_all_gradients_equal_autograd_through_the_smooth_spike(shape, reset, detach_reset, per_step):
    membrane = Membrane(tau=1.7, threshold=0.8, reset=reset, detach_reset=detach_reset)
    gradients = []
    for function in (
        lambda x, s: lif(x, torch.zeros_like(x[0]), s, membrane, shape),
        lambda x, s: straight_through(x, s, membrane, shape),
    ):
        x = currents(4, 50).requires_grad_()
        slope = torch.linspace(1, 3, 4, dtype=torch.float64) if per_step else torch.tensor(2.0, dtype=torch.float64)
        slope.requires_grad_()
        spikes, v = function(x, slope)
        weights = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).view_as(x)
        ((weights * spikes).sum() + (v * weights[1]).sum()).backward()
        gradients.append((slope.grad, x.grad))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("store_v_seq", [False, True])
def test_each_time_step_has_its_own_slope_and_gradient(store_v_seq):
    parameter = log_slope(4.0, steps=3)
    parameter.data = torch.tensor([1.0, 2.0, 5.0]).log()
    node = LIFNode(step_mode="m", carry_state=False, detach_reset=True, store_v_seq=store_v_seq)
    node.slope = LearntSlope(parameter)
    x = torch.full((3, 1), 2.0, dtype=torch.float64, requires_grad=True)  # charged to 1, the threshold, and reset
    node(x).sum().backward()
    assert x.grad.flatten().tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=1e-6)  # slope / 4 / tau
    parameter.grad = None
    node(x.detach() + torch.tensor([[1.0], [0.0], [0.0]])).sum().backward()
    assert parameter.grad[0] > 0
    assert parameter.grad[1:].tolist() == [0, 0]  # at the threshold the slope does not matter


def test_slope_stays_out_of_the_state_dict():
    net = nn.Sequential(nn.Linear(3, 3), LIFNode())
    keys = list(net.state_dict())
    net[1].slope = LearntSlope(log_slope(4.0))
    assert list(net.state_dict()) == keys
    assert len(list(net.parameters())) == 2


def test_slopes_per_time_step_are_refused_in_single_step_mode():
    node = LIFNode(step_mode="s")
    node.slope = LearntSlope(log_slope(4.0, 3))
    with pytest.raises(ValueError, match="use multi-step mode"):
        node(torch.randn(2, 5))
