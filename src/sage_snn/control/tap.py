"""Reads the signal of a source while the network runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import is_in_backward, precise
from .outputs import OutputHook
from .source import Collector, Source


class Tap:
    """Forward hooks on a source's modules that add up its signal, weighted by rows, over the passes of a step.

    What is read: passes in training mode with gradients. A replay of activation checkpointing counts once: it is read
    only when the first pass ran under no_grad (the reentrant kind). A signal gives `times` values for each of the
    source's. `give_up` is called before an error leaves the forward pass, so that the model is not left with a broken
    reader.
    """

    def __init__(
        self,
        source: Source,
        signal: Callable[..., Tensor],
        device: torch.device,
        times: int = 1,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.source, self.signal, self.times, self.give_up = source, signal, times, give_up
        # Preallocated and written in place, so that a compiled forward pass stays one graph: the sums, and rows.
        self.sums = torch.zeros(times * source.width + 1, dtype=precise(device), device=device)
        self.active, self.has_read, self.replayed_after_step = True, False, False
        self._seen_now = self._seen_before = False  # a pass with gradients, since the last step and before it
        self._collector = Collector(source, self.add)
        self._handles: list[Any] = []
        if source.read is None:
            self._handles = [m.register_forward_hook(_Hook(self, role)) for role, m in source.modules().items()]

    def receive(self, role: str, module: nn.Module, output: Tensor) -> None:
        """Take one module's output; with the last of them, read the signal."""
        if not module.training or not self._wanted() or not self.active:
            return
        try:
            self._collector.receive(role, output.detach())
        except ValueError:
            self.give_up()
            raise

    def add(self, *arguments: Any) -> None:
        """Add the signal of what a source gave in one pass."""
        rows = self.source.rows(*arguments)
        if rows == 0:
            return
        first: Tensor = arguments[0]
        width = self.times * self.source.width
        if self.sums.device != first.device:
            self.sums = torch.zeros(width + 1, dtype=precise(first.device), device=first.device)
        with torch.no_grad():
            values = self.signal(*arguments).to(self.sums.dtype)
            if values.shape != (width,):
                raise ValueError(
                    f"a signal must give {self.times} value per head, ({width},), not {tuple(values.shape)}"
                )
            self.sums[:-1].add_(values, alpha=rows)
            self.sums[-1:].add_(rows)
        self.has_read = True

    def clear(self) -> None:
        """Forget what was read."""
        self.sums.zero_()
        self.has_read = False
        self._seen_before, self._seen_now = self._seen_now, False
        self._collector.clear()

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _wanted(self) -> bool:
        if torch.compiler.is_compiling():
            return torch.is_grad_enabled()
        if is_in_backward():  # activation checkpointing replays the pass
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
