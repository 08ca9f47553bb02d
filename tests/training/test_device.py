"""The loop on a device of which nothing can be read: torch's meta device, and a mode that knows blocking copies.

What a step asks of a GPU it asks of the meta device too, which has no values to give: `item`, `tolist`, `bool`, `cpu`
and `nonzero` raise. What only waits, a copy from the host that is not asynchronous, raises by the mode.
"""

import json

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sage_snn import compat
from sage_snn.kernels.attention import entropy_twin, gini_twin, row_entropy_twin
from sage_snn.neurons import lif
from sage_snn.policies import asgl, policy, sage
from sage_snn.recipes import load_recipe
from sage_snn.runs import RunFolder
from sage_snn.runs.checkpoint import load_checkpoint
from sage_snn.surrogate import Masks
from sage_snn.training import look, stopping, train
from sage_snn.training.failure import NonFiniteError
from sage_snn.training.look import Step
from sage_snn.training.loop import Training
from sage_snn.training.stopping import StopRequest
from sage_snn.training.threads import Threads

META = torch.device("meta")


class AnyDevice(CPUAccelerator):
    """Lightning's for CPUs, without its look at the device."""

    def setup_device(self, device):
        pass


class NoWaiting(TorchDispatchMode):
    """Raises where a copy would make the host wait for the device, and where a tensor of the host is made on it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name, tensors = function.overloadpacket.__name__, [t for t in tree_leaves((args, out)) if isinstance(t, Tensor)]
        is_sent = name in ("_to_copy", "copy_") and len({t.device for t in tensors}) > 1
        is_asynchronous = (kwargs or {}).get("non_blocking") or (name == "copy_" and args[2:3] == (True,))
        if (is_sent and not is_asynchronous) or (name == "lift_fresh" and out.is_meta):
            raise RuntimeError(f"the host waits for the device: {function}")
        return out


class Enough(Exception):  # noqa: N818 (no error)
    """So many steps are done."""


class StopAfter(StopRequest):
    """Ends a run after some steps, with no look at anything."""

    def __init__(self, steps):
        self.steps = steps

    @property
    def asked(self):
        self.steps -= 1
        if not self.steps:
            raise Enough
        return False


class StopInTheSecondEpoch(StopRequest):
    """Asks a run with epochs of three steps to stop after the fifth."""

    done = 0

    @property
    def asked(self):
        self.done += 1
        return self.done == 5


@pytest.fixture
def on_meta(tmp_path, tiny, monkeypatch):
    """Builds a training on the meta device; when a policy is attached it may look, and there is nothing to see."""
    monkeypatch.setattr(sage, "check_law", lambda law, z: None)
    monkeypatch.setattr(lif, "_require_constant", lambda *value, **bounds: None)
    monkeypatch.setattr(asgl, "Masks", MetaMasks)

    def build(**settings):
        everything = {"observe.temperatures": [0.25, 1.0], "augmentation.erasing": 0.5, "max_steps_per_epoch": None}
        recipe = load_recipe("digits", tiny | everything | settings)
        folder = RunFolder(tmp_path / "run")
        folder.open(recipe, resume=False)
        fabric = Fabric(accelerator=AnyDevice(), strategy=SingleDeviceStrategy(META))
        return Training(recipe, folder, fabric, Threads(1), download=False, quiet=True)

    return build


class MetaMasks(Masks):
    """Without a generator, which the meta device does not have."""

    def __init__(self, share, seed, device):
        super().__init__(share, seed)

    def draw(self, like):
        return torch.rand_like(like) < self.share


def kinds(kind, **settings):
    return {"policy.kind": kind} | {f"policy.{name}": value for name, value in settings.items()}


# Aligned reads two losses at each trial, every 16 steps, and DGS as many as it has candidates in each step of a search,
# which comes after its first period: between them they read nothing.
POLICIES = [
    kinds("fixed"),
    kinds("scheduled"),
    kinds("learnable", per="block"),
    kinds("learnable", per="time"),
    kinds("sage"),
    kinds("sage", slopes_per="head"),
    kinds("sage", slopes_per="channel", signal="firing_rate"),
    kinds("sage", slopes_per="token"),
    *(kinds("sage", signal=signal) for signal in ("gini", "random", "silent_share", "near_threshold", "gradient_gain")),
    *(kinds(kind) for kind in ("mpd_agl", "ds_atgo", "asgl", "gain_matched", "learnable_constants", "none")),
    kinds("aligned", every=16),
    kinds("dgs", search_batches=5),
]


@pytest.mark.parametrize("settings", POLICIES, ids=lambda settings: "-".join(map(str, settings.values())))
def test_no_step_waits_for_the_device(on_meta, settings):
    training = on_meta(**settings)
    with pytest.raises(Enough), NoWaiting():
        training._train_epoch(StopAfter(2))
    assert training.step == 2


class NoDouble(TorchDispatchMode):
    """Raises where the device would have to compute in float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        lacking = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.device.type in compat.WITHOUT_FLOAT64]
        if any(t.dtype == torch.float64 for t in lacking):
            raise RuntimeError(f"the device has no float64: {function}")
        return out


@pytest.mark.parametrize(
    "settings",
    [
        kinds("learnable", per="time"),
        kinds("sage", signal="gradient_gain"),
        kinds("sage", slopes_per="head"),
        *(kinds(kind) for kind in ("fixed", "sage", "mpd_agl", "ds_atgo", "learnable_constants")),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_no_step_asks_for_float64_of_a_device_that_lacks_it(on_meta, settings, monkeypatch):
    monkeypatch.setattr(compat, "WITHOUT_FLOAT64", ("mps", "meta"))
    with NoDouble():
        training = on_meta(**settings)
        with pytest.raises(Enough):
            training._train_epoch(StopAfter(2))
    assert training.step == 2


@pytest.mark.parametrize("twin", [entropy_twin, gini_twin, row_entropy_twin])
def test_nor_do_the_twins_of_the_statistic_which_are_right_there_too(twin, monkeypatch):
    q, k = (torch.rand(2, 2, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    exact = twin(q, k, 0.125, 0.25)
    monkeypatch.setattr(compat, "WITHOUT_FLOAT64", ("cpu",))
    with NoDouble():
        found = twin(q, k, 0.125, 0.25)
    assert (exact.dtype, found.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(found.double(), exact, atol=1e-6)


def test_the_mode_knows_float64(monkeypatch):
    monkeypatch.setattr(compat, "WITHOUT_FLOAT64", ("meta",))
    with NoDouble(), pytest.raises(RuntimeError, match="no float64"):
        torch.zeros(3, device=META).double()


@pytest.mark.parametrize("every", [1, 3])
def test_a_look_does_wait_and_comes_when_it_is_due(on_meta, monkeypatch, every):
    monkeypatch.setattr(policy, "LOOK_EVERY", every)
    training = on_meta(**kinds("fixed"))
    with pytest.raises(NotImplementedError, match="no data"):
        training._train_epoch(StopAfter(4))
    assert training.step == every - 1


@pytest.mark.parametrize(
    "wait", [lambda x: torch.zeros(2).to(x.device), lambda x: x[[0, 1]], lambda x: x.new_tensor([1.0])]
)
def test_the_mode_knows_copies_that_wait(wait):
    with NoWaiting(), pytest.raises(RuntimeError, match="the host waits"):
        wait(torch.zeros(3, device=META))


@pytest.mark.parametrize(
    "read",
    [Tensor.tolist, Tensor.cpu, Tensor.nonzero, lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x[x > 0]],
)
def test_nothing_can_be_read_of_the_meta_device(read):
    with pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.zeros(3, device=META))


@pytest.fixture
def far_looks(monkeypatch):
    """Looks as on a device, on a CPU."""
    monkeypatch.setattr(look, "may_look", lambda device, step: step % policy.LOOK_EVERY == 0)


@pytest.mark.usefixtures("far_looks")
def test_when_the_host_looks_changes_nothing(finished, tmp_path, tiny, same_run):
    train("digits", tmp_path / "run", settings=tiny, quiet=True)
    assert same_run(finished, tmp_path / "run")


@pytest.mark.usefixtures("far_looks")
def test_a_run_that_is_stopped_between_looks_resumes_to_the_same_bits(finished, tmp_path, tiny, interrupted, same_run):
    interrupted(tmp_path / "run", tiny)
    train("digits", tmp_path / "run", settings=tiny, quiet=True, resume=True)
    assert same_run(finished, tmp_path / "run")


def break_at(step, monkeypatch):
    """Gradients of the second block are infinite in this step of the second epoch."""
    original = Step.add_gradients

    def add_gradients(self, network):
        if self.number == step:
            count.append(step)
        if len(count) == 2:
            network.blocks[1].mlp.first.synapse.weight.grad[0] = torch.inf
            count.append(step)
        original(self, network)

    count = []
    monkeypatch.setattr(Step, "add_gradients", add_gradients)


@pytest.mark.usefixtures("far_looks")
def test_what_broke_between_looks_is_found_at_the_next_and_never_kept(tmp_path, tiny, monkeypatch):
    break_at(2, monkeypatch)
    with pytest.raises(NonFiniteError) as error:
        train("digits", tmp_path / "run", settings=tiny | {"max_steps_per_epoch": 4}, quiet=True)
    text = str(error.value)
    assert "at step 2 of epoch 2; gradients broke in blocks.1 (1 tensors); seen at step 4, when the weights" in text
    assert len(json.loads(text[text.index("[") : text.index("]") + 1])) == 16
    assert len(RunFolder(tmp_path / "run").metrics()) == 1
    kept = load_checkpoint(RunFolder(tmp_path / "run").checkpoints)
    assert (kept["epoch"], kept["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in kept["model"].values())


@pytest.mark.usefixtures("far_looks")
def test_a_broken_run_that_is_asked_to_stop_writes_no_checkpoint(tmp_path, tiny, monkeypatch):
    break_at(1, monkeypatch)
    monkeypatch.setattr(stopping, "StopRequest", StopInTheSecondEpoch)
    with pytest.raises(NonFiniteError, match=r"step 1 of epoch 2.*; seen at step 2"):
        train("digits", tmp_path / "run", settings=tiny, quiet=True)
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.pt"))) == 1
