import pytest
import torch
import torch.nn.functional as F

from sage_snn import machine
from sage_snn.kernels import bits, dense
from sage_snn.kernels.bits import spikes_as_bits
from sage_snn.kernels.events import dense_products, event_map
from sage_snn.layers import TokenMap

ops = torch.ops.sage_snn
ALWAYS, NEVER = 1000, 0  # of a thousand
# Where maps are oneDNN's, it has vectors of 512 bits, with which it divides sums of more than 1280.
LONG = 1600 if dense._narrow() else 1200
ZEN4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}
ZEN5 = {"vendor_id": "AuthenticAMD", "cpu family": "26"}
INTEL = {"vendor_id": "GenuineIntel", "cpu family": "6"}


@pytest.fixture
def onednn(monkeypatch):
    """As on a machine where MKL is slow, for products of any size."""
    monkeypatch.setattr(dense, "_narrow", lambda: True)
    monkeypatch.setattr(dense, "ROWS", 1)
    monkeypatch.setattr(dense, "PRODUCTS", 1)


@pytest.fixture
def convolutions(monkeypatch):
    """How often oneDNN was asked for a map."""
    calls, conv = [], F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *operands: calls.append(1) or conv(*operands))
    return calls


def drawn(*size, rate=0.1, dtype=torch.float32):
    """Spikes and counts up to 3."""
    generator = torch.Generator().manual_seed(0)
    heights = torch.randint(1, 4, size, generator=generator).to(dtype)
    return heights * (torch.rand(size, generator=generator) < rate)


def weights(*size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype) / 8


def gradients(function, *leaves):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    grad = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return out.detach(), *torch.autograd.grad(out, leaves, grad)


@pytest.mark.parametrize(
    ("capability", "told", "expected"),
    [("AVX512", ZEN5, True), ("AVX512", ZEN4, False), ("AVX512", INTEL, False), ("AVX2", ZEN5, False)],
    ids=["AMD with whole units", "AMD in two halves", "Intel", "held to AVX2"],
)
def test_onednn_multiplies_where_mkl_has_half_of_the_processor(monkeypatch, capability, told, expected):
    monkeypatch.setattr(machine, "_line", lambda key: told.get(key, ""))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert dense._narrow.__wrapped__() is expected


def test_a_map_worked_out_by_hand(onednn, convolutions):
    x = torch.tensor([[0.0, 1, 2], [1, 0, 0]]).repeat(8, 1)
    weight, bias = torch.tensor([[1.0, 10, 100], [2, 20, 200]]), torch.tensor([0.5, 0.25])
    assert dense.linear(x, weight, bias).tolist() == [[210.5, 420.25], [1.5, 2.25]] * 8
    grad = torch.tensor([[1.0, 3], [5, 7]]).repeat(8, 1)
    assert dense.of_input(grad, x, weight).tolist() == [[7, 70, 700], [19, 190, 1900]] * 8
    assert dense.of_weight(grad, x).tolist() == [[40, 8, 16], [56, 24, 48]]
    assert convolutions == [1]


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [((4, 8, 64), 64, 64), ((256,), 384, 100), ((3, 16), 30, 7)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_maps_by_onednn_are_torchs_up_to_rounding(onednn, convolutions, rows, inputs, outputs, with_bias):
    leaves = drawn(*rows, inputs), weights(outputs, inputs), *([weights(outputs)] * with_bias)
    found, expected = (gradients(product, *leaves) for product in (dense.linear, F.linear))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)
    assert convolutions == [1]
    x, weight = leaves[:2]
    grad = torch.cos(torch.arange(found[0].numel())).view_as(found[0]).float()
    assert torch.equal(dense.of_input(grad, x, weight), found[1])
    assert torch.equal(dense.of_weight(grad, x), found[2])


@pytest.mark.parametrize("case", ["float64", "rows that do not divide", "no rows", "a view with gaps"])
def test_what_onednn_does_not_take_is_torchs_to_the_bit(onednn, convolutions, case):
    dtype = torch.float64 if case == "float64" else torch.float32
    x, weight = drawn({"rows that do not divide": 33, "no rows": 0}.get(case, 32), 64, dtype=dtype), weights(64, 64)
    x = drawn(64, 32).t() if case == "a view with gaps" else x
    weight = weight[:, : x.shape[1]].to(dtype)
    grad = weights(len(x), 64, dtype=dtype)
    assert torch.equal(dense.linear(x, weight), F.linear(x, weight))
    assert torch.equal(dense.of_input(grad, x, weight), grad @ weight)
    assert torch.equal(dense.of_weight(grad, x), grad.t() @ x)
    assert convolutions == []


@pytest.mark.parametrize(("rows", "inputs"), [(128, 1024), (1024, 64)], ids=["few rows", "few products"])
def test_small_maps_are_torchs(monkeypatch, rows, inputs):
    monkeypatch.setattr(dense, "_narrow", lambda: True)
    x, weight = drawn(rows, inputs), weights(max(64, inputs), inputs)
    assert torch.equal(dense.linear(x, weight), F.linear(x, weight))
    more = drawn(4 * rows, inputs)
    assert not dense.is_by_onednn(x, weight)
    assert dense.is_by_onednn(more, weight)


@pytest.mark.parametrize("inputs", [64, 300, 384, LONG])
@pytest.mark.parametrize("with_bias", [True, False])
def test_events_add_up_in_the_order_of_onednn(onednn, with_threads, inputs, with_bias):
    x, weight = drawn(512, inputs), weights(96, inputs)
    bias = weights(96) if with_bias else None
    by_events = with_threads(lambda: ops.event_map(x, weight, bias, ALWAYS))
    densely = with_threads(lambda: ops.event_map(x, weight, bias, NEVER))
    assert all(torch.equal(found, dense.linear(x, weight, bias)) for found in by_events + densely)


@pytest.mark.usefixtures("small_products")
@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_a_layer_has_the_bits_of_dense_products_but_for_weights(onednn, rate):
    layer, x = TokenMap(384, 64, 1), drawn(8, 32, 384, rate=rate).transpose(1, 2)
    found = gradients(layer, x)
    with dense_products():
        expected = gradients(layer, x)
    assert [torch.equal(a, b) for a, b in zip(found, expected, strict=True)] == [True, True]


def test_dense_maps_keep_spikes_as_bits(onednn, convolutions, monkeypatch):
    x, weight = (drawn(64, 64) > 0).float(), weights(32, 64)  # too few weights for events
    expected = gradients(event_map, x, weight)
    unpacked, unpack = [], bits.unpack_bits
    monkeypatch.setattr(bits, "unpack_bits", lambda *kept: unpacked.append(1) or unpack(*kept))
    with spikes_as_bits(x):
        found = gradients(event_map, x, weight)
    assert [torch.equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * 3
    assert (unpacked, convolutions) == ([1], [1, 1])
