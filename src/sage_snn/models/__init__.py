"""Spiking networks, registered with timm: `spikformer_4_384` (depth, width), `spiking_resnet19` and so on.

timm has a `vgg11` of its own, so the convolutional ones are called spiking there.
"""

from typing import Any

from timm.models import register_model

from .network import SpikingNetwork
from .official import load_official_state_dict, official_state_dict
from .qkformer import QKFormer, qkformer
from .resnet import ResNet, resnet19, resnet20, resnet20_wide
from .spikformer import Spikformer
from .spikingresformer import SpikingResformer, spikingresformer
from .vgg import VGG, vgg11, vgg16

__all__ = [
    "VGG",
    "QKFormer",
    "ResNet",
    "Spikformer",
    "SpikingNetwork",
    "SpikingResformer",
    "load_official_state_dict",
    "official_state_dict",
    "qkformer",
    "resnet19",
    "resnet20",
    "resnet20_wide",
    "spikformer",
    "spikingresformer",
    "vgg11",
    "vgg16",
]


def spikformer(
    depth: int = 4,
    dim: int = 384,
    heads: int = 12,
    time_steps: int = 4,
    num_classes: int = 10,
    image_size: int = 32,
    patch_size: int = 4,
    in_channels: int = 3,
    form: str = "cifar",
    **options: Any,
) -> Spikformer:
    """The official Spikformer of any size; `form` is "cifar" or "imagenet". Further options: those of `Spikformer`.

    Args:
        depth: blocks.
        dim: width, a multiple of `heads`.
        heads: of the attention.
        time_steps: T, how often the network sees an image.
        num_classes: width of the head.
        image_size: side of the square images, in pixels.
        patch_size: side of a token, in pixels.
        in_channels: channels of the images or events.
        form: "cifar" or "imagenet": how the stem pools.
        **options: `mlp_ratio`, `attention_scale` and `neuron` of `Spikformer`.
    """
    sizes = (depth, dim, heads, time_steps, num_classes, image_size, patch_size, in_channels)
    return Spikformer(*sizes, form=form, **options)  # type: ignore[arg-type]


def _named_as_ours(pretrained: bool, options: dict[str, Any]) -> dict[str, Any]:
    """timm's own argument names, and its default of no weights."""
    if pretrained:
        raise ValueError("no pretrained weights are published; load the authors' with load_official_state_dict")
    names = {"in_chans": "in_channels", "img_size": "image_size"}
    options = {names.get(name, name): value for name, value in options.items() if not name.startswith("pretrained_")}
    options.pop("cache_dir", None)
    if options.pop("features_only", False):
        raise ValueError("features_only is not supported; call model.forward_features(images)")
    return options


def _for_timm(sizes: dict[str, Any], pretrained: bool, options: dict[str, Any]) -> Spikformer:
    return spikformer(**(sizes | _named_as_ours(pretrained, options)))


@register_model
def spikformer_4_256(pretrained: bool = False, **options: Any) -> Spikformer:
    """4 blocks, width 256, for 32-pixel images."""
    return _for_timm({"depth": 4, "dim": 256, "heads": 8}, pretrained, options)


@register_model
def spikformer_2_384(pretrained: bool = False, **options: Any) -> Spikformer:
    """2 blocks, width 384, for 32-pixel images."""
    return _for_timm({"depth": 2, "dim": 384, "heads": 12}, pretrained, options)


@register_model
def spikformer_4_384(pretrained: bool = False, **options: Any) -> Spikformer:
    """4 blocks, width 384, for 32-pixel images: 9.32 M parameters."""
    return _for_timm({"depth": 4, "dim": 384, "heads": 12}, pretrained, options)


_IMAGENET = {"image_size": 224, "patch_size": 16, "num_classes": 1000, "form": "imagenet"}


@register_model
def spikformer_8_384(pretrained: bool = False, **options: Any) -> Spikformer:
    """8 blocks, width 384, for 224-pixel images."""
    return _for_timm({"depth": 8, "dim": 384, "heads": 12} | _IMAGENET, pretrained, options)


@register_model
def spikformer_8_512(pretrained: bool = False, **options: Any) -> Spikformer:
    """8 blocks, width 512, for 224-pixel images."""
    return _for_timm({"depth": 8, "dim": 512, "heads": 8} | _IMAGENET, pretrained, options)


@register_model
def spikformer_8_768(pretrained: bool = False, **options: Any) -> Spikformer:
    """8 blocks, width 768, for 224-pixel images."""
    return _for_timm({"depth": 8, "dim": 768, "heads": 12} | _IMAGENET, pretrained, options)


@register_model
def qkformer_4_384(pretrained: bool = False, **options: Any) -> QKFormer:
    """HST-4-384, for 32-pixel images: 6.71 M parameters for 10 classes."""
    return qkformer(**_named_as_ours(pretrained, options))


@register_model
def spikingresformer_cifar(pretrained: bool = False, **options: Any) -> SpikingResformer:
    """Ti with a stem for 32-pixel images."""
    return spikingresformer(**_named_as_ours(pretrained, options))


@register_model
def spikingresformer_ti(pretrained: bool = False, **options: Any) -> SpikingResformer:
    """Widths 64, 192 and 384, for 224-pixel images."""
    return spikingresformer("ti", "imagenet", **_named_as_ours(pretrained, options))


@register_model
def spikingresformer_s(pretrained: bool = False, **options: Any) -> SpikingResformer:
    """Widths 64, 256 and 512, for 224-pixel images."""
    return spikingresformer("s", "imagenet", **_named_as_ours(pretrained, options))


@register_model
def spikingresformer_m(pretrained: bool = False, **options: Any) -> SpikingResformer:
    """Widths 64, 384 and 768, for 224-pixel images."""
    return spikingresformer("m", "imagenet", **_named_as_ours(pretrained, options))


@register_model
def spikingresformer_l(pretrained: bool = False, **options: Any) -> SpikingResformer:
    """Widths 128, 512 and 1024, for 224-pixel images."""
    return spikingresformer("l", "imagenet", **_named_as_ours(pretrained, options))


@register_model
def spiking_resnet19(pretrained: bool = False, **options: Any) -> ResNet:
    """ResNet-19 of STBP-tdBN and TET, for 32-pixel images."""
    return resnet19(**_named_as_ours(pretrained, options))


@register_model
def spiking_resnet20(pretrained: bool = False, **options: Any) -> ResNet:
    """The CIFAR form with 16, 32 and 64 channels."""
    return resnet20(**_named_as_ours(pretrained, options))


@register_model
def spiking_resnet20_wide(pretrained: bool = False, **options: Any) -> ResNet:
    """What Diet-SNN calls ResNet-20."""
    return resnet20_wide(**_named_as_ours(pretrained, options))


@register_model
def spiking_vgg11(pretrained: bool = False, **options: Any) -> VGG:
    """VGG-11 of Hybrid Training."""
    return vgg11(**_named_as_ours(pretrained, options))


@register_model
def spiking_vgg16(pretrained: bool = False, **options: Any) -> VGG:
    """Thirteen convolutions, for 32-pixel images."""
    return vgg16(**_named_as_ours(pretrained, options))
