"""What others do not promise, and we rely on: the first tests to fail when they change it."""

import types

import torch
from spikingjelly.activation_based import neuron
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import compat


def test_apples_devices_lack_float64():
    assert compat.precise("mps") == torch.float32
    assert compat.precise("cpu") == compat.precise(torch.device("cuda", 0)) == torch.float64


def test_tensors_are_sent_without_waiting():
    x = torch.arange(3)
    assert compat.sent(x, torch.device("cpu")) is x
    assert compat.sent(x, torch.device("meta")).is_meta
    assert not compat.is_capturing(x)
    assert callable(torch.cuda.is_current_stream_capturing)


def test_a_replay_of_checkpointing_is_inside_backward():
    seen = []

    def look(x):
        seen.append(compat.is_in_backward())
        return x.square()

    checkpoint(look, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    assert seen == [False, True]
    assert not compat.is_in_backward()


def test_hooks_on_what_autograd_keeps_are_seen():
    assert not compat.has_saved_tensor_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert compat.has_saved_tensor_hooks()


def test_a_region_of_checkpointing_and_its_replay_are_told_from_each_other_and_from_the_rest():
    seen = []

    def look(x):
        seen.append(compat.checkpointed_region())
        return x.square()

    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        checkpoint(look, x, use_reentrant=False).sum().backward()
    assert None not in seen
    assert len(set(map(id, seen))) == 4  # all still held: two passes, two replays
    checkpoint(look, x, use_reentrant=True).sum().backward()
    assert seen[4:] == [None, None]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert compat.checkpointed_region() is None
    assert compat.checkpointed_region() is None


def test_versions_count_changes_in_place():
    x = torch.zeros(2)
    before = compat.version_of(x)
    x.add_(1)
    assert compat.version_of(x) == before + 1


def test_lists_of_tensors_are_copied_and_measured_at_once():
    targets = [torch.zeros(()), torch.zeros(2)]
    compat.copy_each(targets, [torch.tensor(3.0), torch.tensor([3.0, 4.0])])
    assert [float(norm) for norm in compat.norms(targets)] == [3.0, 5.0]


def test_every_kind_of_hook_is_seen():
    for register in ("register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook"):
        module = nn.Linear(1, 1)
        assert not compat.has_input_hooks(module)
        handle = getattr(module, register)(lambda *_: None)
        assert compat.has_input_hooks(module)
        handle.remove()
        assert not compat.has_input_hooks(module)
    module = nn.Linear(1, 1)
    module.register_forward_hook(print)
    assert compat.forward_hooks(module) == [print]


def test_spikingjellys_nodes_keep_their_membrane_among_their_memories():
    node = neuron.LIFNode(step_mode="m")
    node(torch.full((2, 3), 0.5))
    assert torch.equal(compat.memories(node)["v"], node.v)
    compat.memories(node)["v"] = 0.0
    assert node.v == 0.0
    assert compat.memories(nn.Linear(1, 1)) == {}


def test_wrappers_hold_the_network_where_they_are_said_to():
    from lightning.fabric.wrappers import _FabricModule
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    network = nn.Linear(1, 1)
    wrapped = [
        nn.DataParallel(network),
        torch.compile(network),
        checkpoint_wrapper(network),
        _FabricModule(network, strategy=None),
    ]
    for module in wrapped:
        assert getattr(module, compat.WRAPPERS[type(module).__name__]) is network


def test_a_sequence_gives_its_parts_by_name():
    linear = nn.Linear(1, 1)
    assert compat.entries(nn.Sequential(linear)) == {"0": linear}


def test_lightnings_precision_keeps_a_state_and_says_whether_it_scales():
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    for plugin, scales in ((MixedPrecision("bf16-mixed", "cpu"), False), (MixedPrecision("16-mixed", "cpu"), True)):
        fabric = Fabric(accelerator="cpu", devices=1, plugins=plugin)
        assert compat.precision_of(fabric) is plugin
        assert compat.scales_gradients(fabric) is scales
        plugin.load_state_dict(plugin.state_dict())
    assert compat.precision_of(Fabric(accelerator="cpu", devices=1)).precision == "32-true"


def test_every_batch_normalisation_is_one():
    for norm in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        assert issubclass(norm, compat.AnyBatchNorm)
    assert not issubclass(nn.LayerNorm, compat.AnyBatchNorm)


def test_somebody_who_looks_at_every_operation_is_seen():
    from torch.utils.flop_counter import FlopCounterMode

    assert not compat.has_dispatch_mode()
    with FlopCounterMode(display=False):
        assert compat.has_dispatch_mode()
    assert not compat.has_dispatch_mode()


def test_a_profiler_that_writes_down_what_is_called_is_seen():
    assert not compat.is_profiling()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert compat.is_profiling()
    assert not compat.is_profiling()


def codes(code):
    """A function's code and that of all functions defined in it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [code, *(found for part in inner for found in codes(part))]


def test_a_module_is_known_by_the_forward_that_torch_gives_it_with_a_cuda_graph():
    module = nn.Linear(1, 1)
    assert not compat.is_graphed(module)
    # There is no capturing without a GPU: torch's own function, in the place where torch puts it.
    [code] = [c for c in codes(torch.cuda.make_graphed_callables.__code__) if c.co_name == "new_fwd"]
    cells = tuple(types.CellType() for _ in code.co_freevars)
    module.forward = types.FunctionType(code, {}, closure=cells)
    assert compat.is_graphed(module)
    module.forward = lambda x: x
    assert not compat.is_graphed(module)
