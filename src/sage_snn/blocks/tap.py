"""Reads the signal of a block while the network runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..signals import Signal
from .block import Block
from .outputs import OutputHook


class Tap:
    """Forward hooks on a block's query and key that add up its signal, weighted by rows, over the passes of a step.

    What is read: passes in training mode with gradients. A replay of activation checkpointing counts once: it is read
    only when the first pass ran under no_grad (the reentrant kind). A signal gives `per_head` values for each head.
    `give_up` is called before an error leaves the forward pass, so that the model is not left with a broken reader.
    """

    def __init__(
        self,
        block: Block,
        signal: Signal,
        device: torch.device,
        per_head: int = 1,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.block, self.signal, self.per_head, self.give_up = block, signal, per_head, give_up
        # Preallocated and written in place, so that a compiled forward pass stays one graph: the sums, and rows.
        self.sums = torch.zeros(per_head * block.heads + 1, dtype=torch.float64, device=device)
        self.active, self.has_read, self.replayed_after_step = True, False, False
        self._seen_now = self._seen_before = False  # a pass with gradients, since the last step and before it
        self._held: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        if block.query is not None and block.key is not None and block.read is None:
            roles = {"query": block.query} if block.parts > 1 else {"query": block.query, "key": block.key}
            self._handles = [m.register_forward_hook(_Hook(self, role)) for role, m in roles.items()]

    def receive(self, role: str, module: nn.Module, output: Tensor) -> None:
        """Take one module's output; with the last of them, read the signal."""
        if not module.training or not self._wanted() or not self.active:
            return
        self._held[role] = output.detach()
        if len(self._held) == len(self._handles):
            try:
                self.add(*self.block.query_and_key(self._held))
            except ValueError:
                self.give_up()
                raise
            self._held = {}

    def add(self, q: Tensor, k: Tensor) -> None:
        """Add the signal of q and k, each (T, B, H, N, K)."""
        times, batch, heads, tokens, _ = q.shape
        rows = times * batch * tokens
        if rows == 0:
            return
        width = self.per_head * heads
        if self.sums.device != q.device or len(self.sums) != width + 1:
            self.sums = torch.zeros(width + 1, dtype=torch.float64, device=q.device)
        with torch.no_grad():
            values = self.signal(q, k, self.block.scale).to(torch.float64)
            if values.shape != (width,):
                raise ValueError(
                    f"a signal must give {self.per_head} value per head, ({width},), not {tuple(values.shape)}"
                )
            self.sums[:-1].add_(values, alpha=rows)
            self.sums[-1:].add_(rows)
        self.has_read = True

    def clear(self) -> None:
        """Forget what was read."""
        self.sums.zero_()
        self.has_read = False
        self._seen_before, self._seen_now = self._seen_now, False
        self._held = {}

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _wanted(self) -> bool:
        if torch.compiler.is_compiling():
            return torch.is_grad_enabled()
        if torch._C._current_graph_task_id() != -1:  # inside backward: activation checkpointing replays the pass
            self.replayed_after_step |= self._seen_before and not self._seen_now
            return not (self._seen_before or self._seen_now)
        if torch.is_grad_enabled():
            self._seen_now = True
            return True
        self._seen_before = False  # the reentrant kind: what is replayed after this pass was not read yet
        return False


class _Hook(OutputHook):
    """A hook that a copied or unpickled model keeps as a mere shell: only the original reports to the policy."""

    def __init__(self, tap: Tap | None, role: str) -> None:
        self.tap, self.role = tap, role

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.tap is not None:
            self.tap.receive(self.role, module, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self.role)
