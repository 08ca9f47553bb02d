import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels import bits, calls, dense, events
from sage_snn.kernels.bits import pack_bits, spikes_as_bits
from sage_snn.kernels.events import event_conv, event_map
from sage_snn.layers import SpikeConv

ops = torch.ops.sage_snn
ALWAYS, NEVER = 1000, 0  # of a thousand
pytestmark = pytest.mark.usefixtures("small_products")


def last(x):
    """The same values with channels last in memory, also where the shape says nothing about it."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def drawn(*size, rate=0.1, kind="spikes", dtype=torch.float32, seed=0):
    """Spikes, counts up to 4 or any numbers at a rate."""
    generator = torch.Generator().manual_seed(seed)
    heights = {
        "spikes": lambda: torch.ones(size),
        "counts": lambda: torch.randint(1, 5, size, generator=generator),
        "numbers": lambda: torch.randn(size, generator=generator),
    }
    return heights[kind]().to(dtype) * (torch.rand(size, generator=generator) < rate)


def weights(*size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype) / 8


def gradients(function, *leaves):
    """What a function gives, and the gradients of its arguments."""
    leaves = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_() for leaf in leaves]
    out = function(*leaves)
    (out * torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)).sum().backward()
    return out.detach(), *(leaf.grad for leaf in leaves)


def equal(found, expected):
    return [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]


def dense_weight(grad, x, weight, stride):
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]


KINDS = st.sampled_from(["spikes", "counts", "numbers"])
RATES = st.sampled_from([0.0, 0.05, 0.3, 1.0])


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 140), st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 140),
    st.sampled_from([1, 2]),
    RATES,
    KINDS,
    st.booleans(),
)
def test_convolution_equals_torch_in_float64(size, outputs, stride, rate, kind, with_bias):
    x = last(drawn(*size, rate=rate, kind=kind, dtype=torch.float64))
    weight = weights(outputs, size[1], 3, 3, dtype=torch.float64)
    bias = weights(outputs, dtype=torch.float64) if with_bias else None
    expected = F.conv2d(x, weight, bias, stride, 1)
    torch.testing.assert_close(ops.event_conv(x, weight, bias, stride, ALWAYS), expected, rtol=1e-12, atol=1e-12)
    grad = last(torch.randn(expected.shape, dtype=torch.float64))
    of_weight = dense_weight(grad, x, weight, stride)
    found = ops.event_conv_weight(grad, x, None, weight, stride, ALWAYS)
    torch.testing.assert_close(found, of_weight, rtol=1e-12, atol=1e-11)


@settings(deadline=None, max_examples=60)
@given(st.tuples(st.integers(1, 500), st.integers(1, 500)), st.integers(1, 140), RATES, KINDS, st.booleans())
def test_map_equals_torch_in_float64(size, outputs, rate, kind, with_bias):
    x, weight = drawn(*size, rate=rate, kind=kind, dtype=torch.float64), weights(outputs, size[1], dtype=torch.float64)
    bias = weights(outputs, dtype=torch.float64) if with_bias else None
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(ops.event_map(x, weight, bias, ALWAYS), expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(expected.shape, dtype=torch.float64)
    torch.testing.assert_close(ops.event_map_weight(grad, x, None, ALWAYS), grad.t() @ x, rtol=1e-12, atol=1e-11)


def test_a_convolution_worked_out_by_hand():
    """One spike in the corner: the kernel turned around it, cut off at the border."""
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 0, 0] = 1
    weight = torch.arange(1.0, 10).view(1, 1, 3, 3)
    expected = torch.tensor([[5.0, 4, 0], [2, 1, 0], [0, 0, 0]])
    assert torch.equal(ops.event_conv(x, weight, None, 1, ALWAYS)[0, 0], expected)
    assert torch.equal(ops.event_conv(x, weight, torch.tensor([0.5]), 2, ALWAYS)[0, 0], expected[::2, ::2] + 0.5)
    grad = torch.arange(1.0, 10).view(1, 1, 3, 3)
    of_weight = torch.tensor([[0.0, 0, 0], [0, 1, 2], [0, 4, 5]]).flip(0, 1)
    assert torch.equal(ops.event_conv_weight(grad, x, None, weight, 1, ALWAYS)[0, 0], of_weight)


def test_a_map_worked_out_by_hand():
    x, weight = torch.tensor([[0.0, 1, 2], [0, 0, 0]]), torch.tensor([[1.0, 10, 100], [2, 20, 200]])
    bias = torch.tensor([0.5, 0.25])
    assert ops.event_map(x, weight, bias, ALWAYS).tolist() == [[210.5, 420.25], [0.5, 0.25]]
    grad = torch.tensor([[1.0, 3], [5, 7]])
    assert ops.event_map_weight(grad, x, None, ALWAYS).tolist() == [[0, 1, 2], [0, 3, 6]]


@pytest.mark.parametrize("kind", ["spikes", "counts", "numbers"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs", "side"), [(48, 96, 16), (96, 192, 8), (100, 70, 7), (256, 64, 4)])
def test_convolution_has_the_bits_of_onednn(channels, outputs, side, stride, kind):
    x, weight = last(drawn(4, channels, side, side, kind=kind)), weights(outputs, channels, 3, 3)
    for bias in (None, weights(outputs)):
        assert torch.equal(ops.event_conv(x, weight, bias, stride, ALWAYS), F.conv2d(x, weight, bias, stride, 1))
    in_layout = weight.contiguous(memory_format=torch.channels_last)
    assert torch.equal(ops.event_conv(x, in_layout, None, stride, ALWAYS), F.conv2d(x, weight, None, stride, 1))


@pytest.mark.parametrize("stride", [1, 2])
def test_weight_gradients_of_convolutions_are_torchs_up_to_rounding(stride):
    x, weight = last(drawn(4, 48, 16, 16)), weights(96, 48, 3, 3)
    grad = last(torch.randn(F.conv2d(x, weight, None, stride, 1).shape))
    expected = dense_weight(grad, x, weight, stride)
    found = ops.event_conv_weight(grad, x, None, weight, stride, ALWAYS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
    exact = dense_weight(grad.double(), x.double(), weight.double(), stride)
    assert (found - exact).abs().max() <= 4 * (expected - exact).abs().max()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(256, 64, 64), (300, 384, 100), (512, 300, 64)])
def test_maps_are_torchs_up_to_rounding(rows, inputs, outputs):
    x, weight, bias = drawn(rows, inputs, kind="counts"), weights(outputs, inputs), weights(outputs)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(ops.event_map(x, weight, bias, ALWAYS), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn(rows, outputs)
    torch.testing.assert_close(ops.event_map_weight(grad, x, None, ALWAYS), grad.t() @ x, rtol=1e-5, atol=2e-5)


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    x, weight = last(drawn(6, 70, 9, 8)), weights(150, 70, 3, 3)
    tokens, matrix = drawn(700, 230, kind="counts"), weights(90, 230)
    grad, more = last(torch.randn(6, 150, 9, 8)), torch.randn(700, 90)

    def run():
        return (
            ops.event_conv(x, weight, None, 1, ALWAYS),
            ops.event_conv_weight(grad, x, None, weight, 1, ALWAYS),
            ops.event_map(tokens, matrix, None, ALWAYS),
            ops.event_map_weight(more, tokens, None, ALWAYS),
        )

    first, *others = with_threads(run)
    assert all(all(equal(first, other)) for other in others)


def test_more_than_the_limit_is_computed_by_torch(monkeypatch, small_products):
    forward, gradient = small_products.forward, small_products.gradient
    x, weight, grad = last(drawn(4, 32, 16, 16, rate=0.5)), weights(32, 32, 3, 3), last(torch.randn(4, 32, 16, 16))
    tokens, matrix, more = drawn(512, 384, rate=0.5), weights(64, 384), torch.randn(512, 64)
    assert torch.equal(ops.event_conv(x, weight, None, 1, forward), F.conv2d(x, weight, padding=1))
    assert torch.equal(ops.event_conv_weight(grad, x, None, weight, 1, gradient), dense_weight(grad, x, weight, 1))
    assert torch.equal(ops.event_map(tokens, matrix, None, NEVER), dense.linear(tokens, matrix))
    assert torch.equal(ops.event_map_weight(more, tokens, None, NEVER), dense.of_weight(more, tokens))
    # Rates that change from call to call: each call chooses anew, here by the kernel alone.
    calls = []
    monkeypatch.setattr(dense, "linear", lambda *arguments: calls.append(1) or torch.zeros(()))
    for rate in (0.1, 0.9, 0.1):
        ops.event_map(drawn(512, 384, rate=rate), matrix, None, forward)
    assert calls == [1]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), -2.0, -0.0, 1e-40, 0.3])
def test_values_that_are_no_spikes_give_what_torch_gives(odd):
    x, weight = last(drawn(4, 32, 8, 8)), weights(64, 32, 3, 3)
    x[1, 5, 3, 3] = odd
    tokens, matrix = drawn(256, 64), weights(64, 64)
    tokens[7, 9] = odd
    same = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(event_conv(x, weight), F.conv2d(x, weight, padding=1), **same)
    torch.testing.assert_close(event_map(tokens, matrix), F.linear(tokens, matrix), **same)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_weights_and_gradients_that_are_not_finite_spread_as_in_dense_sums(odd):
    x, weight, grad = last(drawn(4, 32, 8, 8)), weights(64, 32, 3, 3), last(torch.randn(4, 64, 8, 8))
    tokens, matrix, more = drawn(256, 64), weights(64, 64), torch.randn(256, 64)
    weight[3, 4, 1, 1] = matrix[5, 6] = odd
    expected = F.conv2d(x, weight, padding=1)
    assert expected[:, 3].isnan().any(), "zero times infinity"
    torch.testing.assert_close(event_conv(x, weight), expected, equal_nan=True)
    torch.testing.assert_close(event_map(tokens, matrix), F.linear(tokens, matrix), equal_nan=True)
    weight, grad[2, 7, 4, 4], more[8, 9] = weights(64, 32, 3, 3), odd, odd
    found = ops.event_conv_weight(grad, x, None, weight, 1, ALWAYS)
    torch.testing.assert_close(found, dense_weight(grad, x, weight, 1), equal_nan=True)
    torch.testing.assert_close(ops.event_map_weight(more, tokens, None, ALWAYS), more.t() @ tokens, equal_nan=True)


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 140), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([1, 2]),
    RATES,
    st.sampled_from([torch.float32, torch.float64]),
)
def test_weight_gradients_from_bits_have_the_bits_of_those_from_values(size, stride, rate, dtype):
    x, weight = last(drawn(*size, rate=rate, dtype=dtype)), weights(40, size[1], 3, 3, dtype=dtype)
    grad = last(torch.randn_like(F.conv2d(x, weight, None, stride, 1)))
    rows, more = x.movedim(1, -1).reshape(-1, size[1]), torch.randn(x.numel() // size[1], 40, dtype=dtype)
    packed = pack_bits(rows)
    nothing, no_rows = torch.full_like(x, torch.nan), torch.full_like(rows, torch.nan)
    for limit in (ALWAYS, NEVER):
        found = ops.event_conv_weight(grad, nothing, packed, weight, stride, limit)
        assert torch.equal(found, ops.event_conv_weight(grad, x, None, weight, stride, limit))
        found = ops.event_map_weight(more, no_rows, packed, limit)
        assert torch.equal(found, ops.event_map_weight(more, rows, None, limit))


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("kind", ["spikes", "counts"])
def test_spikes_kept_as_bits_are_read_as_bits(rate, kind, monkeypatch):
    x, weight = last(drawn(8, 40, 6, 6, rate=rate, kind=kind)), weights(64, 40, 3, 3)
    tokens, matrix = drawn(8, 30, 40, rate=rate, kind=kind), weights(64, 40)
    expected = gradients(event_conv, x, weight) + gradients(event_map, tokens, matrix)
    read = []
    monkeypatch.setattr(bits, "unpack_bits", lambda *_: pytest.fail("what was kept was unpacked for autograd"))
    function = calls.function
    monkeypatch.setattr(events, "function", lambda name, *dtype: read.append(name) or function(name, *dtype))
    with spikes_as_bits(x):
        found = gradients(event_conv, x, weight) + gradients(event_map, tokens, matrix)
    assert equal(found, expected) == [True] * 6
    assert [name for name in read if "weight" in name] == ["sage_event_conv_weight", "sage_event_map_weight"]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_through_autograd_are_torchs(stride, dtype):
    x, weight, bias = (
        last(drawn(4, 32, 8, 8, dtype=dtype)),
        weights(64, 32, 3, 3, dtype=dtype),
        weights(64, dtype=dtype),
    )
    found = gradients(lambda x, w, b: event_conv(x, w, b, stride), x, weight, bias)
    expected = gradients(lambda x, w, b: F.conv2d(x, w, b, stride, 1), x, weight, bias)
    tokens, matrix = drawn(4, 64, 32, dtype=dtype), weights(64, 32, dtype=dtype)
    found += gradients(event_map, tokens, matrix, bias)
    expected += gradients(F.linear, tokens, matrix, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0, 32, 8, 8),
        drawn(4, 32, 8, 8),
        last(drawn(4, 32, 8, 8)).bfloat16(),
        last(drawn(8, 32, 16, 16))[:, :, ::2, 1::2],
        last(drawn(4, 32, 1, 1)),
        drawn(32, 8, 8),
    ],
    ids=["empty", "in order", "bfloat16", "every other pixel", "one pixel", "one image"],
)
def test_what_the_kernel_does_not_take_goes_to_torch(x):
    conv = SpikeConv(32, 32, 3, padding=1, bias=False, dtype=x.dtype)
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, padding=1))
    tokens = x.transpose(0, -1)
    matrix = conv.weight.new_ones(40, tokens.shape[-1])
    assert torch.equal(event_map(tokens, matrix), F.linear(tokens, matrix))


@pytest.mark.parametrize("inputs", [16, 64])
def test_operands_that_do_not_fit_are_refused_by_torch(inputs):
    with pytest.raises(RuntimeError, match="channels"):
        event_conv(last(drawn(4, inputs, 8, 8)), weights(64, 32, 3, 3))
    with pytest.raises(RuntimeError, match="shapes"):
        event_map(drawn(256, inputs), weights(64, 32))
    with pytest.raises(RuntimeError, match="bias"):
        event_conv(last(drawn(4, inputs, 8, 8)), weights(64, inputs, 3, 3), weights(63))


@pytest.mark.parametrize(
    "options",
    [{"padding": 0}, {"dilation": 2}, {"groups": 2}, {"padding_mode": "reflect"}, {"stride": 3}, {"stride": (1, 2)}],
)
def test_convolutions_of_another_form_are_torchs(options):
    x, options = last(drawn(4, 32, 9, 9)), {"padding": 1} | options
    ours, theirs = SpikeConv(32, 32, 3, **options), torch.nn.Conv2d(32, 32, 3, **options)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x), theirs(x))


def test_counters_of_operations_see_torchs_own():
    from torch.utils.flop_counter import FlopCounterMode

    x, weight = last(drawn(4, 32, 8, 8)), weights(64, 32, 3, 3)
    with FlopCounterMode(display=False) as counter:
        event_conv(x, weight)
    assert counter.get_total_flops() == 2 * 4 * 64 * 64 * 32 * 9


def test_autocast_computes_in_its_own_precision():
    x, weight = last(drawn(4, 32, 8, 8)), weights(64, 32, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert event_conv(x, weight).dtype == torch.bfloat16


@pytest.mark.slow
def test_compiled_graph_is_one_and_gives_the_bits_of_eager():
    torch.compiler.reset()
    x, weight, bias = last(drawn(4, 32, 8, 8)), weights(64, 32, 3, 3), weights(64)
    tokens, matrix = drawn(4, 64, 32, kind="counts"), weights(64, 32)
    for product, leaves in ((event_conv, (x, weight, bias)), (event_map, (tokens, matrix, bias))):
        compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
        assert all(equal(gradients(compiled, *leaves), gradients(product, *leaves)))


@pytest.mark.parametrize("size", [(3, 40, 7, 6), (2, 33, 1, 1)])
def test_operators_keep_what_they_promise_to_torch(size):
    x, weight = last(drawn(*size)), weights(40, size[1], 3, 3)
    grad = last(torch.randn(size[0], 40, *size[2:]))
    matrix, rows = weights(40, size[1]), drawn(3, 30, size[1])
    for limit in (ALWAYS, NEVER):
        for operator, arguments in (
            (ops.event_conv, (x, weight, None, 1, limit)),
            (ops.event_conv_weight, (grad, x, None, weight, 1, limit)),
            (ops.event_map, (rows, matrix, None, limit)),
            (ops.event_map_weight, (torch.randn(3, 30, 40), rows, None, limit)),
        ):
            torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))
