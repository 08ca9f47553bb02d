import pytest
import torch

from sage_snn.kernels import native


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
