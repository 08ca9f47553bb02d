import pytest
import torch

from sage_snn.kernels import limits, native


@pytest.fixture(autouse=True)
def _compiled(request):
    if native.library() is None:
        pytest.fail(f"install a C++ compiler to test the kernels: {native.status()}")


@pytest.fixture
def off(monkeypatch):
    """Turn the C++ off: the twins run, until the test ends."""
    monkeypatch.setenv("SAGE_SNN_KERNELS", "off")
    native.forget()
    yield
    monkeypatch.undo()
    native.forget()


@pytest.fixture
def with_threads():
    """Run something with 1, 2 and 3 threads."""
    before = torch.get_num_threads()

    def results(compute):
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(compute())
        return found

    yield results
    torch.set_num_threads(before)


@pytest.fixture
def straight():
    """The neuron in plain torch, a step after the other, as autograd sees it when each spike is a smooth function."""

    def run(x, v, slope, *, threshold=1.0, tau=2.0, reset=0.0, decay_input=True, detach_reset=False):
        """Spikes (T, ...), last membrane and charged membranes (T, ...); the slope broadcasts over x."""
        rest, spikes, charged = reset or 0.0, [], []
        slope = torch.as_tensor(slope).expand(x.shape)
        threshold = torch.as_tensor(threshold, dtype=x.dtype).expand(len(x))
        for current, own, theta in zip(x, slope, threshold, strict=True):
            h = v + (current - (v - rest)) / tau if decay_input else v - (v - rest) / tau + current
            smooth = torch.sigmoid(own * (h - theta))
            spike = (h >= theta).to(h) + (smooth - smooth.detach())  # its value to the bit
            resetting = spike.detach() if detach_reset else spike
            v = h - resetting * theta if reset is None else resetting * reset + (1 - resetting) * h
            spikes.append(spike)
            charged.append(h)
        return torch.stack(spikes), v, torch.stack(charged)

    return run


@pytest.fixture(params=["kernel", "twin"])
def either(request):
    """Once with the C++, once with the twins."""
    if request.param == "kernel":
        yield
    else:
        with native.switched_off():
            yield


@pytest.fixture
def small_products(monkeypatch):
    """Products of any size may walk events, up to shares that are those of no machine in particular."""
    chosen = limits.Limits(forward=300, gradient=200, packed=400, least_forward=0, least_gradient=0)
    monkeypatch.setattr(limits, "_limits", lambda: chosen)
    return chosen
