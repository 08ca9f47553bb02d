"""Slopes of tokens: nodes get their tensors at the beginning of a pass, and they are filled in when they are known.

T time steps, B batch, C channels, N positions, H heads, K head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..compat import checkpointed_region, is_in_backward
from ..surrogate import WrittenSlope
from .attention import Layout


class TokenSlopes:
    """The slopes of a block's tokens in the pass that runs, in units of each node's base slope.

    Backward reads a slope as it is then, so a node that fired before query and key were known gets its share too. What
    is never filled in stays at the base. A node that fires again begins another pass. Unless it `may_move`, nothing is
    handed out but the base. `give_up` is called before an error leaves the forward pass.
    """

    may_move = False

    def __init__(self, layout: Layout = "TBCN", give_up: Callable[[], None] = lambda: None) -> None:
        self.axis, self.layout = 2 if layout == "TBNC" else 3, layout
        self.give_up = give_up
        self.device: torch.device | None = None  # of the tensors, if it is known
        self.clear()

    def clear(self) -> None:
        """Forget the pass."""
        self._given: dict[tuple[float, tuple[int, ...]], Tensor] = {}
        self._fired: set[int] = set()
        self._ratios: Tensor | None = None
        self._heads = self._width = 0

    def begin(self, node: "TokenSlope", shape: tuple[int, ...]) -> Tensor:
        """The slopes of one node for a pass over currents (T, B, C, N) of this shape."""
        if is_in_backward():
            if checkpointed_region() is None:
                raise RuntimeError(_REENTRANT)
            return self._at_base(node, shape)  # a replay: what backward reads are the slopes of the pass itself
        if id(node) in self._fired:
            self.clear()
        self._fired.add(id(node))
        key = (node.base, shape)
        if key not in self._given:
            self._given[key] = self._at_base(node, shape)
            self._fill(key)
        return self._given[key]

    def fill(self, ratios: Tensor, heads: int, width: int) -> None:
        """Make known the slopes (T, B, N) of the tokens of this pass, whose query has H heads of width K."""
        self._ratios, self._heads, self._width = ratios, heads, width
        for key in self._given:
            self._fill(key)

    def _at_base(self, node: "TokenSlope", shape: tuple[int, ...]) -> Tensor:
        sizes = (*shape[:2], 1, shape[3]) if self.axis == 3 else (*shape[:3], 1)
        return node.tensor.new_full(sizes, node.base, device=self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied or unpickled model has nobody who makes its slopes known: its nodes keep their base."""
        return TokenSlopes, (self.layout,)

    def _fill(self, key: tuple[float, tuple[int, ...]]) -> None:
        if self._ratios is None:
            return
        (base, shape), ratios = key, self._ratios
        if shape[:2] != ratios.shape[:2]:
            self.give_up()
            raise ValueError(
                f"slopes of tokens {tuple(ratios.shape)} do not fit a node's currents {shape}: name the nodes that "
                "share its time steps and images with Block(neurons=[...])"
            )
        self._given[key].copy_(self._over_positions(shape).mul(base).reshape(self._given[key].shape))

    def _over_positions(self, shape: tuple[int, ...]) -> Tensor:
        """(T, B, positions): a token each, tokens innermost where a head's width is a position too, else their mean."""
        ratios, positions = self._ratios, shape[self.axis]
        assert ratios is not None
        tokens, has_heads_only = ratios.shape[2], self.axis == 3 and shape[2] == self._heads and self._width > 1
        if has_heads_only and positions == self._width * tokens:
            return ratios.repeat(1, 1, self._width)
        # As many positions as a head is wide, and no channels: they may be either.
        if positions == tokens and not (has_heads_only and positions == self._width):
            return ratios
        return ratios.mean(2, keepdim=True).expand(-1, -1, positions)


class TokenSlope(WrittenSlope):
    """One node's slope per token, from the slopes of its block; without a pass, its base."""

    def __init__(self, tokens: TokenSlopes, base: float, device: torch.device | str = "cpu") -> None:
        super().__init__(base, device=device)
        self.tokens, self.base = tokens, base

    def begin(self, shape: tuple[int, ...]) -> Tensor:
        """The slopes for one forward pass over currents of this shape; without a backward, one is enough."""
        is_wanted = self.tokens.may_move and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return self.tokens.begin(self, tuple(shape)) if is_wanted else self()


_REENTRANT = (
    "slopes per token are lost in the replay of reentrant activation checkpointing; pass use_reentrant=False to "
    "torch.utils.checkpoint"
)
