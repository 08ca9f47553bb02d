"""The only file that knows the insides of models: where blocks are, where query and key are, where slopes go.

T time steps, B batch, H heads, N tokens, K head width, C = H * K channels.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .neurons import LIFNode, surrogate_shape
from .signals import Signal
from .surrogate import SHAPES, Slope, TensorSurrogate, WrittenSlope

Layout = Literal["TBNC", "TBCN", "TBCHW"]


@dataclass(eq=False)
class Block:
    """One transformer block: the nodes that share a slope, and where its query and key spikes are read.

    `query` and `key` are modules whose outputs have the given layout (without T in single-step mode). With `parts` > 1
    they are one module whose output holds that many equal parts along the channels, query and key first.
    Or `read` is called once per policy step and gives (q, k), each (T, B, H, N, K).
    """

    neurons: Sequence[nn.Module]
    query: nn.Module | None = None
    key: nn.Module | None = None
    heads: int = 1
    scale: float = 0.125
    layout: Layout = "TBNC"
    name: str | None = None
    read: Callable[["Block"], tuple[Tensor, Tensor]] | None = None
    parts: int = 1
    attention: Sequence[nn.Module] = ()  # the nodes among `neurons` that belong to the attention

    def __post_init__(self) -> None:
        if self.read is None and (self.query is None or self.key is None):
            raise ValueError("a Block needs query= and key= modules, or read=callable(block) -> (q, k)")
        if self.heads < 1:
            raise ValueError(f"heads must be at least 1, not {self.heads}")
        if self.layout not in ("TBNC", "TBCN", "TBCHW"):
            raise ValueError(f"layout must be 'TBNC', 'TBCN' or 'TBCHW', not {self.layout!r}")

    def split(self, x: Tensor) -> Tensor:
        """Spikes in the block's layout -> (T, B, H, N, K)."""
        x = x.flatten(-2) if self.layout == "TBCHW" else x
        x = x.unsqueeze(0) if x.ndim == 3 else x
        x = x if self.layout == "TBNC" else x.transpose(-1, -2)
        if x.ndim != 4 or x.shape[-1] % self.heads:
            raise ValueError(
                f"block {self.name}: {self.heads} heads do not divide {x.shape[-1]} channels of an output read as "
                f"{self.layout}; describe it with Block(heads=..., layout=...)"
            )
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def query_and_key(self, outputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(q, k), each (T, B, H, N, K), from the outputs of the two modules, or of the one that holds both."""
        if self.parts > 1:
            channel = -1 if self.layout == "TBNC" else (-3 if self.layout == "TBCHW" else -2)
            q, k = outputs["query"].chunk(self.parts, dim=channel)[:2]
        else:
            q, k = outputs["query"], outputs["key"]
        return self.split(q), self.split(k)


def is_node(module: nn.Module) -> bool:
    """Does the module fire through a surrogate that has a slope?"""
    return hasattr(getattr(module, "surrogate_function", None), "alpha")


def nodes_of(module: nn.Module) -> list[nn.Module]:
    """All spiking nodes with a slope in a module, in order."""
    return [m for m in module.modules() if is_node(m)]


def find_blocks(model: nn.Module) -> list[Block]:
    """The attention blocks of a spiking transformer, recognised by structure."""
    modules = dict(model.named_modules())
    attentions = {name: m for name, m in modules.items() if _attention_fields(m) is not None}
    parents = [name.rpartition(".")[0] for name in attentions]
    blocks: list[Block] = []
    for (name, attention), parent in zip(attentions.items(), parents, strict=True):
        # The block is the module around the attention, unless that is a mere list of attentions or the whole model.
        whole = modules[parent] if parent and parents.count(parent) == 1 else attention
        whole = attention if isinstance(whole, nn.ModuleList | nn.Sequential) else whole
        fields = _attention_fields(attention)
        assert fields is not None
        blocks.append(Block(nodes_of(whole), name=_plain(name), attention=nodes_of(attention), **fields))
    if not blocks:
        kind = type(getattr(model, "module", model)).__name__
        raise ValueError(f"no spiking self-attention found in {kind}; pass blocks=[Block(...)]")
    return blocks


def block_nodes(blocks: Sequence[Block], neurons: str) -> list[nn.Module]:
    """The nodes that blocks control: all of theirs, or those of their attention only."""
    if neurons not in ("block", "attention", "all"):
        raise ValueError(f"neurons must be 'block', 'attention' or 'all', not {neurons!r}")
    nodes = [node for b in blocks for node in (b.attention if neurons == "attention" else b.neurons)]
    if not nodes:
        raise ValueError("the blocks name no neurons; pass Block(neurons=[...]), and attention=[...] for that choice")
    if len({id(node) for node in nodes}) < len(nodes):
        raise ValueError("a neuron belongs to two blocks; give every Block its own neurons")
    return nodes


def owners(blocks: Sequence[Block], nodes: Sequence[nn.Module]) -> list[int]:
    """Index of each node's block."""
    owner = {id(node): i for i, block in enumerate(blocks) for node in (*block.neurons, *block.attention)}
    return [owner[id(node)] for node in nodes]


def _attention_fields(module: nn.Module) -> dict[str, Any] | None:
    """What `Block` needs to know of an attention module, or None if it is not one we recognise."""
    heads = getattr(module, "num_heads", None) or getattr(module, "heads", None)
    if not isinstance(heads, int):
        return None
    scale = getattr(module, "scale", 0.125)
    common = {"heads": heads, "scale": float(scale) if isinstance(scale, int | float) else 0.125}
    for name, parts in (("qkv_lif", 3), ("qk_lif", 2)):  # SpikingJelly
        packed = getattr(module, name, None)
        if isinstance(packed, nn.Module):
            return common | {"query": packed, "key": packed, "layout": "TBCN", "parts": parts}
    query, key = getattr(module, "q_lif", None), getattr(module, "k_lif", None)
    if isinstance(query, nn.Module) and isinstance(key, nn.Module):  # the authors' repositories, SpikeDrivenTransformer
        return common | {"query": query, "key": key, "layout": _layout(module)}
    query, key = (getattr(getattr(module, part, None), "lif", None) for part in ("query", "key"))
    if isinstance(query, nn.Module) and isinstance(key, nn.Module):  # our own
        return common | {"query": query, "key": key, "layout": "TBCN"}
    return None


def _layout(attention: nn.Module) -> Layout:
    projection = getattr(attention, "q_conv", None)
    if isinstance(projection, nn.Conv2d):
        return "TBCHW"
    return "TBCN" if isinstance(projection, nn.Conv1d) else "TBNC"


def _plain(name: str) -> str:
    """A module's name without the wrappers of DDP and torch.compile."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


class Tap:
    """Forward hooks on a block's query and key that add up its signal, weighted by rows, over the passes of a step.

    What is read: passes in training mode with gradients. A replay of activation checkpointing counts once: it is read
    only when the first pass ran under no_grad (the reentrant kind).
    """

    def __init__(self, block: Block, signal: Signal, device: torch.device) -> None:
        self.block, self.signal = block, signal
        # Preallocated and written in place, so that a compiled forward pass stays one graph: a sum per head, and rows.
        self.sums = torch.zeros(block.heads + 1, dtype=torch.float64, device=device)
        self.active, self.has_read, self.read_in_forward, self.replayed_after_step = True, False, False, False
        self._held: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        if block.query is not None and block.key is not None and block.read is None:
            roles = {"query": block.query} if block.parts > 1 else {"query": block.query, "key": block.key}
            self._handles = [m.register_forward_hook(_Hook(self, role)) for role, m in roles.items()]

    def receive(self, role: str, module: nn.Module, output: Tensor) -> None:
        """Take one module's output; with the last of them, read the signal."""
        if not module.training or not self.active or not self._wanted():
            return
        self._held[role] = output.detach()
        if len(self._held) == len(self._handles):
            self.add(*self.block.query_and_key(self._held))
            self._held = {}

    def add(self, q: Tensor, k: Tensor) -> None:
        """Add the signal of q and k, each (T, B, H, N, K)."""
        times, batch, heads, tokens, _ = q.shape
        rows = times * batch * tokens
        if rows == 0:
            return
        if self.sums.device != q.device or len(self.sums) != heads + 1:
            self.sums = torch.zeros(heads + 1, dtype=torch.float64, device=q.device)
        with torch.no_grad():
            values = self.signal(q, k, self.block.scale).to(torch.float64)
            if values.shape != (heads,):
                raise ValueError(f"a signal must give one value per head, ({heads},), not {tuple(values.shape)}")
            self.sums[:-1].add_(values, alpha=rows)
            self.sums[-1:].add_(rows)
        self.has_read = True

    def clear(self) -> None:
        """Forget what was read."""
        self.sums.zero_()
        self.has_read = False
        self._held = {}

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _wanted(self) -> bool:
        if torch.compiler.is_compiling():
            return torch.is_grad_enabled()
        if torch._C._current_graph_task_id() != -1:  # inside backward: activation checkpointing replays the pass
            self.replayed_after_step |= self.read_in_forward and not self.has_read
            return not self.read_in_forward
        self.read_in_forward = torch.is_grad_enabled()
        return self.read_in_forward


class _Hook:
    """A hook that a copied or unpickled model keeps as a mere shell: only the original reports to the policy."""

    def __init__(self, tap: Tap | None, role: str) -> None:
        self.tap, self.role = tap, role

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.tap is not None:
            self.tap.receive(self.role, module, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self.role)


class NodeSlopes:
    """The slopes of a set of nodes, each kept the way its node can: a tensor in ours, a float in SpikingJelly's."""

    def __init__(self, nodes: Iterable[nn.Module]) -> None:
        self.nodes = list(nodes)
        for node in self.nodes:
            if not is_node(node):
                raise ValueError(
                    f"{type(node).__name__} has no surrogate_function.alpha to control; "
                    "use a SpikingJelly node or sage_snn.neurons.LIFNode"
                )
        self.bases = [float(node.surrogate_function.alpha) for node in self.nodes]  # type: ignore[union-attr]
        self._originals = [node.surrogate_function for node in self.nodes]

    @property
    def takes_tensor(self) -> list[bool]:
        """Which nodes keep their slope in a tensor, so that writing it needs no host synchronisation."""
        return [isinstance(node, LIFNode) and surrogate_shape(node) is not None for node in self.nodes]

    def paths(self) -> list[str]:
        """How each node keeps its slope and through which code it fires, in words."""
        return [_path(node, ours) for node, ours in zip(self.nodes, self.takes_tensor, strict=True)]

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Give every node a slope of its own that can be written."""
        for node, base, ours in zip(self.nodes, self.bases, self.takes_tensor, strict=True):
            if ours:
                node.slope = WrittenSlope(base, live=live, device=device)  # type: ignore[assignment]
            else:  # SpikingJelly's nodes share one surrogate object: a copy each, or all would follow
                node.surrogate_function = copy.deepcopy(node.surrogate_function)

    def require_shapes(self, *, every_step: bool) -> None:
        """Raise unless each node's slope can be learnt: a known surrogate, and our node for a slope per time step."""
        for node in self.nodes:
            if surrogate_shape(node) is None:
                kind = type(node.surrogate_function).__name__
                raise ValueError(f"no gradient is defined for the slope of {kind}; use one of {', '.join(SHAPES)}")
            if every_step and not isinstance(node, LIFNode):
                raise ValueError("a slope per time step needs sage_snn.neurons.LIFNode in place of SpikingJelly's")

    def learn(self, slopes: Iterable[Slope]) -> None:
        """Give every node a slope that is computed anew in each forward pass."""
        for node, slope, ours in zip(self.nodes, slopes, self.takes_tensor, strict=True):
            if ours:
                node.slope = slope  # type: ignore[assignment]
            else:
                shape = surrogate_shape(node)
                assert shape is not None
                node.surrogate_function = TensorSurrogate(shape, slope)

    def write(self, values: Tensor) -> None:
        """Write one value per node (nodes,)."""
        live: list[tuple[Tensor, Tensor]] = []
        for node, value, ours in self._with(values.unbind()):
            if ours and node.slope.live:
                live.append((node.slope.tensor, value))
            elif ours:  # put in place, not copied into it: a compiled backward pass may still need the old tensor
                node.slope.tensor = value.to(node.slope.tensor.device)
        if live:
            held, written = (list(side) for side in zip(*live, strict=True))
            torch._foreach_copy_(held, written)  # pyright: ignore[reportPrivateImportUsage]
        if not all(ours for _, _, ours in self._with(self.nodes)):
            for node, value, ours in self._with(values.tolist()):  # a host synchronisation, on a GPU
                if not ours:
                    node.surrogate_function.alpha = value

    def restore(self) -> None:
        """Give every node its own surrogate back, untouched."""
        for node, original in zip(self.nodes, self._originals, strict=True):
            if isinstance(node, LIFNode):
                node.slope = None
            node.surrogate_function = original  # pyright: ignore[reportAttributeAccessIssue]

    def _with(self, values: Iterable[Any]) -> list[tuple[Any, Any, bool]]:
        ours = [isinstance(getattr(node, "slope", None), WrittenSlope) for node in self.nodes]
        return list(zip(self.nodes, values, ours, strict=True))


def _path(node: nn.Module, ours: bool) -> str:
    if ours:
        return "of ours, slope in a tensor"
    if isinstance(node.surrogate_function, TensorSurrogate):
        return "of SpikingJelly, slope in a tensor: its loop over time, not its fast path, which takes numbers only"
    if surrogate_shape(node) is None:
        kind = type(node.surrogate_function).__name__
        return f"with {kind}, slope a number: SpikingJelly's loop over time, not its fast path, which lacks that shape"
    return "of SpikingJelly, slope a number in a surrogate of their own, its fast path where it has one"
