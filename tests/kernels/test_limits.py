import pytest
import torch
import torch.nn.functional as F

from sage_snn import machine
from sage_snn.kernels import events, limits
from sage_snn.kernels.calls import function
from sage_snn.kernels.events import event_conv, event_map

ZEN4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}
ZEN5 = {"vendor_id": "AuthenticAMD", "cpu family": "26"}
INTEL = {"vendor_id": "GenuineIntel", "cpu family": "6"}


@pytest.mark.parametrize(
    ("capability", "told", "expected"),
    [
        ("AVX2", INTEL, limits.LONGER_LISTS),
        ("AVX2", ZEN5, limits.USUAL),
        ("AVX512", ZEN4, limits.USUAL),
        ("AVX512", ZEN5, limits.FAST_LISTS),
        ("AVX512", INTEL, limits.FAST),
        ("DEFAULT", {}, limits.LONGER_LISTS),
    ],
    ids=["Intel held to AVX2", "AMD held to AVX2", "in two halves", "AMD in one", "Intel", "unknown"],
)
def test_limits_are_lower_where_dense_products_are_faster(monkeypatch, capability, told, expected):
    monkeypatch.setattr(machine, "_line", lambda key: told.get(key, ""))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert limits._limits.__wrapped__() is expected
    in_order = limits.FAST, limits.LONGER_LISTS, limits.USUAL
    assert [rule.forward for rule in in_order] == sorted(rule.forward for rule in in_order)
    assert [rule.gradient for rule in in_order] == sorted(rule.gradient for rule in in_order)


RULES = {
    "usual": limits.USUAL,
    "longer lists": limits.LONGER_LISTS,
    "fast": limits.FAST,
    "fast lists": limits.FAST_LISTS,
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request, monkeypatch):
    monkeypatch.setattr(limits, "_limits", lambda: request.param)
    return request.param


@pytest.fixture
def walked(monkeypatch):
    """The names of the kernels that walked events, and did not leave the product to torch."""
    names = []

    def recorded(name, dtype):
        def call(*arguments):
            is_done = function(name, dtype)(*arguments)
            names.extend([name] * is_done)
            return is_done

        return call

    monkeypatch.setattr(events, "function", recorded)
    return names


def spikes(*size, rate):
    x = (torch.rand(size, generator=torch.Generator().manual_seed(0)) < rate).float()
    return x.contiguous(memory_format=torch.channels_last) if len(size) == 4 else x


def gradient_of(product, x, weight):
    weight = weight.clone().requires_grad_()
    return torch.autograd.grad(product(x, weight).square().sum(), weight)[0]


def test_few_weights_are_dense_in_both_directions(rule, walked):
    x, weight = spikes(8, 16, 16, 16, rate=0.05), torch.randn(32, 16, 3, 3)
    assert torch.equal(event_conv(x, weight), F.conv2d(x, weight, padding=1))
    gradient_of(event_conv, x, weight)
    assert walked == []


def test_gradients_want_more_weights_than_forward_passes(rule, walked):
    x, few, many = spikes(512, 64, rate=0.05), torch.randn(192, 64), torch.randn(768, 64)
    expected = gradient_of(F.linear, x, few)
    torch.testing.assert_close(gradient_of(event_map, x, few), expected, rtol=1e-5, atol=1e-3)
    assert walked == ["sage_event_map"]
    gradient_of(event_map, x, many)
    assert walked[1:] == ["sage_event_map", "sage_event_map_weight"]


@pytest.mark.parametrize("step", [-0.04, 0.04])
def test_each_limit_is_where_the_path_changes(rule, walked, step):
    weight = torch.randn(384, 384)
    event_map(spikes(512, 384, rate=rule.forward / 1000 + step), weight)
    assert walked == ["sage_event_map"] * (step < 0)
    walked.clear()
    gradient_of(event_map, spikes(512, 384, rate=rule.gradient / 1000 + step), weight)
    assert ("sage_event_map_weight" in walked) == (step < 0)
