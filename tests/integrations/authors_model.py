"""A model file with the imports, the names and the builder of the authors' model.py; its modules are the twin's.

Lines that docs/adopt.md names are written as the authors write them.
"""
# fmt: off
# ruff: noqa: F401, I001

import official_twin
import torch.nn as nn
from spikingjelly.clock_driven.neuron import MultiStepLIFNode
from timm.models.layers import to_2tuple, trunc_normal_, DropPath
from timm.models.registry import register_model
from timm.models.vision_transformer import _cfg
__all__ = ['spikformer']


def lif(threshold=1.0):
    return MultiStepLIFNode(tau=2.0, v_threshold=threshold, detach_reset=True, backend='cupy')


official_twin.lif = lif


class Spikformer(official_twin.OfficialTwin):
    """Takes the names that train.py passes; those that change nothing have no use here either."""

    def __init__(self, *, depths, embed_dims, num_heads, mlp_ratios, patch_size, in_channels, num_classes, T,
                 img_size_h, img_size_w, qkv_bias, sr_ratios, drop_rate, drop_path_rate):
        assert (in_channels, mlp_ratios) == (3, 4), "the twin has no others"
        super().__init__(depths, embed_dims, num_heads, T, num_classes, "cifar", patch_size)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=.02)


@register_model
def spikformer(pretrained=False, **kwargs):
    built = Spikformer(**kwargs)
    built.default_cfg = _cfg()
    return built
