import copy
import pickle

import pytest
import torch

from sage_snn.inference import fuse
from sage_snn.kernels.additions import additions_told
from sage_snn.kernels.events import event_conv, event_map, pack_events
from sage_snn.kernels.packed import Packed

pytestmark = pytest.mark.usefixtures("small_products")


def drawn(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


def spikes(*size):
    return (torch.rand(size, generator=torch.Generator().manual_seed(2)) < 0.1).float()


def twice(weight):
    return 2 * weight


def test_it_is_made_once_and_anew_when_the_tensor_was_written_to():
    weight, packed, calls = drawn(3, 2), Packed(), []

    def make(source):
        calls.append(1)
        return twice(source)

    first = packed.of(weight, make)
    assert packed.of(weight, make) is first
    assert len(calls) == 1
    weight[0] += 1
    assert torch.equal(packed.of(weight, make), 2 * weight)
    assert len(calls) == 2


def test_another_tensor_and_another_view_are_told_from_it():
    weight, packed = drawn(4, 4), Packed()
    packed.of(weight, twice)
    assert torch.equal(packed.of(weight.t(), twice), 2 * weight.t())
    assert torch.equal(packed.of(weight.double(), twice), 2 * weight.double())
    parameter = torch.nn.Parameter(weight.clone())
    packed.of(parameter, twice)
    parameter.data = drawn(4, 4) + 1  # the old one is held, so the new one lies elsewhere
    assert torch.equal(packed.of(parameter, twice), 2 * parameter)


def test_tensors_of_inference_mode_have_no_versions_and_are_never_kept():
    packed = Packed()
    with torch.inference_mode():
        weight = torch.ones(3)
        packed.of(weight, twice)
        weight += 1
        assert torch.equal(packed.of(weight, twice), 2 * weight)


def test_copies_start_empty():
    packed = Packed()
    packed.of(drawn(3), twice)
    for other in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert vars(other) == vars(Packed())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 32), (40, 70), (64, 300)])
def test_products_with_packed_weights_have_the_same_bits(inputs, outputs, dtype):
    weight, bias, packed = drawn(outputs, inputs, 3, 3).to(dtype), drawn(outputs).to(dtype), Packed()
    x = spikes(4, inputs, 8, 8).to(dtype).to(memory_format=torch.channels_last)
    for kernel in (weight, weight.to(memory_format=torch.channels_last)):
        expected = event_conv(x, kernel, bias)
        assert torch.equal(event_conv(x, kernel, bias, packed=packed), expected)
        assert torch.equal(event_conv(x, kernel, bias, packed=packed), expected)
    rows, matrix = spikes(128, inputs).to(dtype), weight[:, :, 1, 1].contiguous()
    assert torch.equal(event_map(rows, matrix, bias, Packed()), event_map(rows, matrix, bias))


def test_with_packed_weights_lists_are_walked_up_to_a_higher_rate():
    weight, told = drawn(32, 16), []
    x = (torch.arange(64 * 16) % 20 < 7).float().view(64, 16)  # 35 %
    with additions_told(told.append):
        event_map(x, weight)
        assert told == []
        assert torch.equal(event_map(x, weight, None, Packed()), event_map(x, weight))
        assert told == [int(x.sum()) * 32]


def test_weights_that_are_not_finite_are_not_packed_and_give_the_dense_result():
    weight, x = drawn(32, 16), spikes(64, 16)
    weight[3, 5] = float("inf")
    assert pack_events(weight) is None
    assert torch.equal(event_map(x, weight, None, Packed()).isnan(), (x @ weight.t()).isnan())


@torch.no_grad()
def test_a_fused_network_sees_weights_that_are_loaded_after_its_first_pass(ours, settle):
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    first, second = (ours(dim=64) for _ in range(2))
    for weight in second.parameters():
        weight.mul_(1.1)
    for kind in ("float32", "int8"):
        fused, other = fuse(settle(first, images), kind), fuse(settle(second, images), kind)
        before = fused(images)
        fused.load_state_dict(other.state_dict())
        assert torch.equal(fused(images), other(images))
        assert not torch.equal(before, other(images))
