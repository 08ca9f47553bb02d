"""Networks and data small enough for two cores: every test builds its models here."""

import os

import pytest
import torch
from spikingjelly.activation_based.model.spikformer import Spikformer as JellySpikformer

from sage_snn.models.spikformer import Spikformer

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)  # tensors this small gain nothing from a second thread and lose much when cores are shared


def _ours(**options):
    torch.manual_seed(0)
    sizes = {"depth": 2, "dim": 32, "heads": 4, "time_steps": 2, "image_size": 16, "patch_size": 4}
    return Spikformer(**(sizes | options))


def _jelly(**options):
    torch.manual_seed(0)
    sizes = {"T": 2, "img_size_h": 16, "img_size_w": 16, "patch_size": 4, "num_classes": 10, "embed_dims": 32}
    return JellySpikformer(**(sizes | {"num_heads": 4, "depths": 2} | options))


@pytest.fixture
def ours():
    """Builder of our Spikformer."""
    return _ours


@pytest.fixture
def jelly():
    """Builder of SpikingJelly's Spikformer."""
    return _jelly


@pytest.fixture(params=[_ours, _jelly], ids=["ours", "jelly"])
def build(request):
    """Builder of either."""
    return request.param


@pytest.fixture
def images():
    """Four images."""
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def settle():
    """Give BatchNorm the statistics of a batch and put it in eval mode, so that images do not see each other."""

    def settled(model, batch):
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.momentum = None  # the running average of one batch is that batch's
        with torch.no_grad():
            model(batch)
        for norm in norms:
            norm.eval()
        return model

    return settled
