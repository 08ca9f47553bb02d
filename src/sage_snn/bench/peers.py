"""SpikingJelly's networks with the weights and statistics of ours.

Its Spikformer pools before the neurons: cheaper, and another function of the same weights. In the official order, after
them, its layers compute what ours do.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from spikingjelly.activation_based import layer
from spikingjelly.activation_based.model.spikformer import Spikformer as SpikingJellySpikformer
from torch import Tensor, nn

from ..models.resnet import ResNet
from .resnet import SpikingJellyResNet19

OWN, OFFICIAL = "SpikingJelly", "SpikingJelly, official order"
_STATISTICS = "weight", "bias", "running_mean", "running_var"


def peers(ours: nn.Module) -> dict[str, Callable[[], nn.Module]]:
    """What makes SpikingJelly's networks with the weights of ours, by name, for a Spikformer or a ResNet-19."""
    if isinstance(ours, ResNet):
        return {OWN: partial(_resnet, ours)}
    return {OWN: partial(_spikformer, ours, pools_first=True), OFFICIAL: partial(_spikformer, ours, pools_first=False)}


def _resnet(ours: Any) -> nn.Module:
    theirs = SpikingJellyResNet19(ours.stem[0].synapse.out_channels / 64, ours.time_steps).to(ours.head.weight)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    return theirs.train(ours.training)


def _spikformer(ours: Any, *, pools_first: bool) -> nn.Module:
    """In multi-step mode, as it recommends."""
    theirs = SpikingJellySpikformer(
        T=ours.time_steps,
        in_channels=ours.in_channels,
        img_size_h=ours.image_size,
        img_size_w=ours.image_size,
        patch_size=4,  # it knows 4 and 16 only; which stages pool is set below
        num_classes=ours.num_classes,
        embed_dims=ours.num_features,
        num_heads=ours.blocks[0].attention.heads,
        mlp_ratio=ours.blocks[0].mlp.first.synapse.out_channels / ours.num_features,
        depths=len(ours.blocks),
    ).to(ours.head.weight)
    for units, pair in zip(_units(ours), _pairs(theirs), strict=True):
        _give(units, *pair)
    theirs.head.load_state_dict(ours.head.state_dict())
    _pool(theirs.patch_embed.stages, ours.stem.pooled_stages, pools_first)
    return theirs.train(ours.training)


def _units(ours: Any) -> Iterator[list[Any]]:
    """Units of ours, those together that are one layer of SpikingJelly's."""
    yield from ([stage] for stage in (*ours.stem.stages, ours.stem.position))
    for block in ours.blocks:
        attention, mlp = block.attention, block.mlp
        yield [attention.query, attention.key, attention.value]
        yield from ([unit] for unit in (attention.projection, mlp.first, mlp.second))


def _pairs(theirs: Any) -> Iterator[Any]:
    """Synapse and normalisation in the same order, with the pooling behind some."""
    stem = theirs.patch_embed
    yield from (stage.conv_bn.block[:2] for stage in (*stem.stages, stem.positional_encoding))
    for block in theirs.blocks:
        yield from (block.attn.qkv_conv_bn, block.attn.proj_conv_bn, block.mlp.fc1, block.mlp.fc2)


@torch.no_grad()
def _give(units: list[Any], synapse: Any, norm: Any) -> None:
    synapse.weight.copy_(torch.cat([unit.synapse.weight for unit in units]))
    for name in _STATISTICS:
        getattr(norm, name).copy_(torch.cat([getattr(unit.norm, name) for unit in units]))
    norm.running_mean.sub_(torch.cat([_bias(unit.synapse) for unit in units]))


def _bias(synapse: Any) -> Tensor:
    """SpikingJelly's synapses have none: it moves the mean, which normalisation takes away."""
    return synapse.weight.new_zeros(len(synapse.weight)) if synapse.bias is None else synapse.bias


def _pool(stages: nn.Sequential, pooled: int, first: bool) -> None:
    """Let the last `pooled` stages pool, before their neurons or after."""
    for index, stage in enumerate(list(stages)):
        convolution: Any = stage.conv_bn
        convolution.block = layer.SeqToANNContainer(*convolution.block[:2])
        if index < len(stages) - pooled:
            continue
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        if first:
            convolution.block.append(pool)
        else:
            stages[index] = nn.Sequential(stage, layer.SeqToANNContainer(pool))
