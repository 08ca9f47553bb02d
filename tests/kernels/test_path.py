"""Which code runs where, and the reason in words; fake and meta tensors stand in for devices that are not here."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sage_snn import Fixed
from sage_snn.kernels import native, path, switched_off
from sage_snn.kernels.arguments import why_not_native
from sage_snn.kernels.gpu import available
from sage_snn.kernels.lif import Membrane, lif
from sage_snn.kernels.path import code_on, why_twin


@pytest.fixture
def gpu():
    """A tensor that says it is on a GPU."""
    with FakeTensorMode():
        yield torch.empty(3, device="cuda")


@pytest.fixture
def triton(monkeypatch):
    """Makes Triton another version, or none."""

    def becomes(found):
        monkeypatch.setattr(available, "version", lambda: found)
        available._why_not.cache_clear()

    yield becomes
    monkeypatch.undo()
    available._why_not.cache_clear()


def test_on_a_gpu_the_triton_kernels_run_and_are_named(gpu):
    import triton

    assert path(gpu) == "Triton"
    assert why_twin(gpu) is None
    assert code_on(gpu) == f"of Triton {triton.__version__}, on cuda"


def test_kernels_can_be_switched_off_on_a_gpu_too(gpu, monkeypatch):
    with switched_off():
        assert (path(gpu), code_on(gpu)) == ("twin", "switched off")
    monkeypatch.setenv("SAGE_SNN_KERNELS", "off")
    native.forget()
    try:
        assert (path(gpu), code_on(gpu)) == ("twin", "off by SAGE_SNN_KERNELS")
    finally:
        monkeypatch.undo()
        native.forget()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "Triton is missing; pip install triton"),
        ("3.2.0", "Triton 3.2.0 is older than 3.3; pip install -U triton"),
        ("unknown", "Triton unknown is older than 3.3; pip install -U triton"),
    ],
)
def test_without_a_triton_that_knows_the_kernels_the_twin_runs_and_says_why(gpu, triton, found, reason):
    triton(found)
    assert (path(gpu), why_twin(gpu), code_on(gpu)) == ("twin", reason, f"none: {reason}")


@pytest.mark.parametrize("found", ["3.3.1", "3.10.0+git5389ed79", "4.0.0rc1"])
def test_newer_versions_of_triton_are_taken(gpu, triton, found):
    triton(found)
    assert path(gpu) == "Triton"


def test_a_device_without_kernels_runs_the_twin_and_a_policy_says_why(ours):
    reason = "there is no kernel for meta devices"
    x = torch.zeros(2, 3, 4, device="meta")
    assert (path(x), code_on(x)) == ("twin", f"none: {reason}")
    spikes, last = lif(x, x[0], torch.tensor(4.0, device="meta"), Membrane())
    assert (spikes.shape, last.shape) == (x.shape, x.shape[1:])
    model = ours().to("meta")
    with Fixed(model) as policy:
        assert f"kernels none: {reason}" in str(policy)
        assert f"not fused: {reason}" in str(policy)
        assert all(node.slope.tensor.is_meta for node in policy._nodes.nodes)  # else every pass would send it


def test_a_dtype_without_a_kernel_runs_in_the_twin_and_is_named(gpu):
    assert why_not_native(gpu) is None
    assert why_not_native(gpu.double()) == "no kernel on cuda computes in torch.float64"
    x = torch.empty(2, 3, dtype=torch.float64, device="cuda")
    assert lif(x, x[0], torch.tensor(4.0, device="cuda"), Membrane())[0].dtype == torch.float64
