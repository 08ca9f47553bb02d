import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sage_snn.inference import WholeSynapse
from sage_snn.kernels import whole
from sage_snn.kernels.events import dense_products
from sage_snn.kernels.whole import MOST_EVENTS, pack_whole, whole_conv, whole_map
from sage_snn.layers import TokenMap
from sage_snn.models.convolution import conv

ALWAYS = 1000 * 127  # events to a thousand values: no more than there can be


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(whole, "MOST_EVENTS", ALWAYS)


def drawn(*size, rate=0.1, most=1):
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, most + 1, size, generator=generator)
    return (counts * (torch.rand(size, generator=generator) < rate)).byte()


def last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def test_a_map_worked_out_by_hand(always):
    weight = torch.tensor([[1, -2, 3], [127, 0, -127]], dtype=torch.int8)
    counts = torch.tensor([[2, 0, 1], [0, 0, 0]], dtype=torch.uint8)
    found = whole_map(counts, pack_whole(weight), torch.tensor([0.5, 2.0]), torch.tensor([0.25, -1.0]))
    # 2 * 1 + 1 * 3 = 5 and 2 * 127 - 127 = 127
    assert found.tolist() == [[2.75, 253.0], [0.25, -1.0]]


def test_a_convolution_worked_out_by_hand(always):
    weight = torch.arange(1, 10, dtype=torch.int8).view(1, 1, 3, 3)
    counts = last(torch.tensor([[0, 0, 0], [0, 3, 0], [0, 0, 1]], dtype=torch.uint8).view(1, 1, 3, 3))
    found = whole_conv(counts, pack_whole(weight), torch.ones(1), torch.zeros(1), 1)
    # Three times the kernel, turned, around the middle; once around the corner.
    assert found[0, 0].tolist() == [[27.0, 24.0, 21.0], [18.0, 15.0 + 9.0, 12.0 + 8.0], [9.0, 6.0 + 6.0, 3.0 + 5.0]]
    assert whole_conv(counts, pack_whole(weight), torch.ones(1), torch.zeros(1), 2)[0, 0].tolist() == [[27, 21], [9, 8]]


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 140), st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None, max_examples=60)
@given(
    SIZES, st.integers(1, 300), st.sampled_from([1, 2]), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([1, 4, 127])
)
def test_sums_are_those_of_the_simulation(size, outputs, stride, rate, most):
    torch.manual_seed(0)
    counts = last(drawn(*size, rate=rate, most=most))
    image, tokens = WholeSynapse(conv(size[1], outputs, stride=stride)), WholeSynapse(nn.Linear(size[1], outputs))
    rows = counts.movedim(1, -1).contiguous()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "MOST_EVENTS", ALWAYS)
        found = whole_conv(counts, pack_whole(image.weight), image.scale, image.bias, stride)
        assert torch.equal(found, image.simulated(counts))
        found = whole_map(rows, pack_whole(tokens.weight), tokens.scale, tokens.bias)
        assert torch.equal(found, tokens.simulated(rows))


def test_sixteen_bits_are_emptied_before_they_are_full(always):
    counts = torch.full((3, 512), 127, dtype=torch.uint8)
    for sign in (-1, 1):
        weight = torch.full((40, 512), sign * 127, dtype=torch.int8)
        found = whole_map(counts, pack_whole(weight), torch.ones(40), torch.zeros(40))
        assert found.unique().tolist() == [sign * 127 * 127 * 512]


def test_the_limit_counts_events_not_values():
    weight, one = pack_whole(torch.ones(32, 100, dtype=torch.int8)), torch.ones(32)
    few = torch.zeros(100, 100, dtype=torch.uint8)
    few.view(-1)[: MOST_EVENTS * 10] = 1  # in ten thousand
    assert whole_map(few, weight, one, one) is not None
    few[0, 0] = 2
    assert whole_map(few, weight, one, one) is None


@pytest.mark.parametrize("build", [lambda: conv(48, 64), lambda: conv(48, 64, stride=2), lambda: TokenMap(256, 64, 1)])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_synapses_walk_events_where_those_are_few(build, rate, monkeypatch):
    torch.manual_seed(0)
    synapse = WholeSynapse(build())
    size = (8, 256, 64) if synapse.options is None else (8, 48, 8, 8)
    x = last(drawn(*size, rate=rate, most=2))
    by_onednn = []
    dense = WholeSynapse._by_onednn
    monkeypatch.setattr(WholeSynapse, "_by_onednn", lambda *given: by_onednn.append(1) or dense(*given))
    found = synapse(x)
    assert len(by_onednn) == (rate == 0.5)
    torch.testing.assert_close(found, synapse.simulated(x), rtol=1e-6, atol=1e-6)
    with dense_products():
        torch.testing.assert_close(synapse(x), found, rtol=1e-6, atol=1e-6)
    assert len(by_onednn) == (rate == 0.5) + 1


def test_sums_do_not_depend_on_the_number_of_threads(with_threads):
    synapse, x = WholeSynapse(conv(48, 64)), last(drawn(8, 48, 8, 8))
    first, *others = with_threads(lambda: synapse(x))
    assert [torch.equal(first, other) for other in others] == [True, True]
