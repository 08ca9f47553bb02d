"""What is wrapped around a network is taken off, and nothing else; copies need no reset first."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from sage_snn import SAGE, find_blocks
from sage_snn.control import unwrapped
from sage_snn.deploy import export, fuse


@pytest.mark.parametrize(
    "wrap", [torch.compile, AveragedModel, nn.DataParallel, lambda m: torch.compile(AveragedModel(m))]
)
def test_wrappers_are_taken_off(wrap, ours):
    model = ours()
    inside = unwrapped(wrap(model))
    assert type(inside) is type(model)
    assert inside.state_dict().keys() == model.state_dict().keys()


class Ensemble(nn.Module):
    """A network of somebody who calls a part of it `module`."""

    def __init__(self, module):
        super().__init__()
        self.module, self.last = module, nn.Linear(10, 3)

    def forward(self, x):
        return self.last(self.module(x))


def test_an_attribute_called_module_is_no_wrapper(ours, images):
    model = Ensemble(ours())
    assert fuse(model)(images).shape == (4, 3)


def test_weights_of_a_compiled_model_have_plain_names(ours, images, tmp_path):
    from safetensors.torch import load_file

    model = ours()
    export(torch.compile(model), tmp_path / "w.safetensors", "safetensors", images)
    assert load_file(tmp_path / "w.safetensors").keys() == model.state_dict().keys()


def test_a_model_can_be_fused_between_a_pass_and_its_reset(jelly, images):
    model = jelly()
    model(images)
    assert fuse(model)(images).isfinite().all()


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, torch.compile])
def test_a_wrapped_attention_is_found_once(ours, wrap):
    model = ours()
    expected = [(block.name, len(block.neurons)) for block in find_blocks(model)]
    for block in model.blocks:
        block.attention = wrap(block.attention)
    assert [(block.name, len(block.neurons)) for block in find_blocks(model)] == expected
    SAGE(model, warmup_steps=0).remove()
