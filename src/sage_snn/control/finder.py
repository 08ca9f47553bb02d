"""Finds the groups of networks, attention blocks or layers, by their structure, never by their class."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ..compat import entries
from .attention import Attention, Layout
from .copies import INSIDES, is_wrapper, unwrapped
from .dual import DualAttention
from .group import Block, Group
from .target import is_node, nodes_of


def find_blocks(model: nn.Module) -> list[Block]:
    """The attention blocks of a spiking transformer, recognised by structure.

    Args:
        model: a spiking transformer: ours, SpikingJelly's, or its authors'.
    """
    modules = dict(model.named_modules())
    sources = {name: source for name, m in modules.items() if (source := _source(m)) is not None}
    parents = [_parent(name, modules) for name in sources]
    blocks: list[Block] = []
    for (name, source), parent in zip(sources.items(), parents, strict=True):
        parts = _parts(name, parent, modules, is_alone=parents.count(parent) == 1)
        source.name = _plain(name)
        _refuse_odd_heads(source)
        nodes = [node for part in parts for node in nodes_of(part)]
        attention = modules[name]
        inside, by_head = nodes_of(attention), _nodes_by_head(attention)
        blocks.append(Block(nodes, name=source.name, attention=inside, by_head=by_head, source=source))
    if not blocks:
        kind = type(unwrapped(model)).__name__
        raise ValueError(
            f"no spiking self-attention found in {kind}; pass blocks=[Block(...)], or, to follow something else than "
            "attention, groups=find_layers(model) with source='firing', 'membrane' or 'gradient'"
        )
    return blocks


def find_layers(model: nn.Module) -> list[Group]:
    """The spiking layers of any network, one group per node, in order; spikes that nobody reads have no sources.

    Args:
        model: any network of spiking nodes with a surrogate slope.
    """
    nodes = [(name, module) for name, module in model.named_modules() if is_node(module)]
    if not nodes:
        raise ValueError(
            f"no spiking node with a surrogate slope found in {type(unwrapped(model)).__name__}; "
            "pass groups=[Group(neurons=[...]), ...]"
        )
    return [Group([node], name=_plain(name)) for name, node in nodes]


def find_groups(model: nn.Module) -> list[Group]:
    """The attention blocks where there are any, else the layers: for policies that read nothing."""
    has_attention = any(_source(module) is not None for module in model.modules())
    return list(find_blocks(model)) if has_attention else find_layers(model)


def around(model: nn.Module, parts: Iterable[nn.Module]) -> nn.Module | None:
    """The smallest module of a model that holds all these parts; None if they are not all in the model."""
    wanted = {id(part) for part in parts}
    holders = [module for module in model.modules() if wanted <= {id(inner) for inner in module.modules()}]
    return holders[-1] if holders else None  # modules come before what they hold


def _parts(name: str, parent: str, modules: dict[str, nn.Module], *, is_alone: bool) -> list[nn.Module]:
    """The block is the module around the attention, unless that is a mere list of attentions or the whole model."""
    if not parent or isinstance(modules[parent], nn.ModuleList):
        return [modules[name]]
    around_it = modules[parent]
    if isinstance(around_it, nn.Sequential):
        return _until_the_next(name.removeprefix(f"{parent}.").partition(".")[0], around_it)
    return [around_it if is_alone else modules[name]]


def _until_the_next(first: str, sequence: nn.Sequential) -> list[nn.Module]:
    """In a sequence, an attention and what follows it before the next one: SpikingResformer's feed-forward layers."""
    names, parts = list(entries(sequence)), list(sequence)
    start = names.index(first)
    has_attention = [any(_source(inner) is not None for inner in part.modules()) for part in parts]
    end = next((i for i in range(start + 1, len(parts)) if has_attention[i]), len(parts))
    return parts[start:end]


def _source(module: nn.Module) -> Attention | None:
    """What is read of an attention module, or None if it is not one we recognise."""
    heads = getattr(module, "num_heads", None) or getattr(module, "heads", None)
    if not isinstance(heads, int) or is_wrapper(module):
        return None
    scale = getattr(module, "scale", 0.125)
    is_number = isinstance(scale, int | float) or (isinstance(scale, Tensor) and scale.numel() == 1)
    spikes = _query_and_key(module)
    if spikes is None:
        return _dual(module, heads)
    width = _width(module, spikes.get("parts", 1))
    scale = float(scale) if is_number else 0.125
    return Attention(heads=heads, scale=scale, pool=_pool(module), channels=width, **spikes)


def _dual(module: nn.Module, heads: int) -> DualAttention | None:
    """SpikingResformer's attention, in the authors' code and in ours."""
    product: Any = getattr(module, "map", None)
    for names, fired, keeper, rate in (
        (("activation_in", "norm"), getattr(module, "activation_attn", None), module, "firing_rate_x"),
        (("query", "key_value"), getattr(product, "lif", None), product, "rate"),
    ):
        query, key = (getattr(module, name, None) for name in names)
        is_known = all(isinstance(part, nn.Module) for part in (query, key, fired))
        if is_known and isinstance(getattr(keeper, rate, None), Tensor):
            widths = [part.out_channels // 2 for part in module.modules() if isinstance(part, nn.Conv2d)]
            channels = widths[0] if widths else None  # the first makes keys and values
            options: dict[str, Any] = {"heads": heads, "layout": "TBCHW", "channels": channels}
            return DualAttention(query, key, **options, fired=fired, keeper=keeper, rate=rate)
    return None


def _query_and_key(module: nn.Module) -> dict[str, Any] | None:
    for name, parts in (("qkv_lif", 3), ("qk_lif", 2)):  # SpikingJelly
        packed = getattr(module, name, None)
        if isinstance(packed, nn.Module):
            return {"query": packed, "key": packed, "layout": "TBCN", "parts": parts}
    query, key = getattr(module, "q_lif", None), getattr(module, "k_lif", None)
    if isinstance(query, nn.Module) and isinstance(key, nn.Module):  # the authors' repositories, SpikeDrivenTransformer
        return {"query": query, "key": key, "layout": _layout(module)}
    query, key = (getattr(getattr(module, part, None), "lif", None) for part in ("query", "key"))
    if isinstance(query, nn.Module) and isinstance(key, nn.Module):  # our own
        return {"query": query, "key": key, "layout": "TBCN"}
    return None


def _nodes_by_head(attention: nn.Module) -> list[nn.Module]:
    """Of query, key, value (one node or several) and of what they come to, by the names of their parts."""
    parts = {"query", "key", "value", "lif"} | {f"{part}_lif" for part in ("q", "k", "v", "qk", "qkv", "attn")}
    return [node for name, part in attention.named_children() if name in parts for node in nodes_of(part)]


def _layout(attention: nn.Module) -> Layout:
    """By the projection itself, which may stand inside a sequence with its normalisation."""
    projection = getattr(attention, "q_conv", None)
    parts = list(projection.modules()) if isinstance(projection, nn.Module) else []
    if any(isinstance(part, nn.Conv2d) for part in parts):
        return "TBCHW"
    return "TBCN" if any(isinstance(part, nn.Conv1d) for part in parts) else "TBNC"


def _pool(attention: nn.Module) -> nn.Module | None:
    """Spike-driven Transformer, for event cameras, pools the spikes of its key before it uses them."""
    pool = getattr(attention, "pool", None)
    return pool if getattr(attention, "dvs", False) is True and isinstance(pool, nn.Module) else None


def _width(attention: nn.Module, parts: int) -> int | None:
    """Of the first projection whose name begins with q: q_conv, q_linear, qkv_conv_bn, query."""
    projections = [child for part, child in attention.named_children() if part.startswith("q")]
    sizes = (getattr(m, "out_channels", getattr(m, "out_features", None)) for p in projections for m in p.modules())
    width = next((size for size in sizes if isinstance(size, int)), None)
    return None if width is None else width // parts


def _refuse_odd_heads(source: Attention) -> None:
    if source.channels is not None and source.channels % source.heads:
        raise ValueError(
            f"block {source.name}: {source.heads} heads do not divide its {source.channels} channels; "
            "build the model with heads from the divisors of its width"
        )


def _plain(name: str) -> str:
    """A module's name without the wrappers of DDP, torch.compile and activation checkpointing."""
    return ".".join(part for part in name.split(".") if part not in INSIDES)


def _parent(name: str, modules: dict[str, nn.Module]) -> str:
    """Name of the module around this one and its wrappers."""
    parent = name.rpartition(".")[0]
    return _parent(parent, modules) if parent and is_wrapper(modules[parent]) else parent
