"""Reads the signal of a source while the network runs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import forward_hooks, is_capturing, is_in_backward, memories, precise
from .copies import carries_foreign_state
from .outputs import OutputHook
from .source import Collector, Source


class Tap:
    """Forward hooks on a source's modules that add up its signal, weighted by rows, over the passes of a step.

    What is read: passes in training mode with gradients. A replay of activation checkpointing counts once: it is read
    only when the first pass ran under no_grad (the reentrant kind). A signal gives `times` values for each of the
    source's, and `extra` more; one that reads only a part of what it is given says in `rows_read(...)` how much.
    `give_up` is called before a ValueError leaves the pass, so that the model is not left with a broken reader; before
    any other (a device may be out of memory) `spoil`, since what was read of the pass must not count.
    `holder` is a module around those that are read together: when it is entered, what a pass that broke off has left
    is forgotten.
    """

    def __init__(
        self,
        source: Source,
        signal: Callable[..., Tensor],
        device: torch.device,
        times: int = 1,
        extra: int = 0,
        give_up: Callable[[], None] = lambda: None,
        holder: nn.Module | None = None,
        spoil: Callable[[], None] | None = None,
    ) -> None:
        self.source, self.signal, self.times, self.extra, self.give_up = source, signal, times, extra, give_up
        self.spoil = self.forget if spoil is None else spoil
        # Preallocated and written in place, so that a compiled forward pass stays one graph: the sums, and rows.
        self.sums = torch.zeros(self.width + 1, dtype=precise(device), device=device)
        self.active, self.has_read, self.replayed_after_step = True, False, False
        self.is_compiled = False  # by torch.compile, as far as a pass has shown
        self.is_captured = False  # in a CUDA graph, which adds to the sums and tells nobody
        self.replayed: nn.Module | None = None  # the last module that activation checkpointing ran again
        self._seen_now = self._seen_before = False  # a pass with gradients, since the last step and before it
        self._collector = Collector(source, self.add)
        self._handles: list[Any] = []
        if source.read is None:
            modules = source.modules()
            self._handles = self._listen(modules)
            if holder is not None and len(modules) > 1:
                self._handles.append(holder.register_forward_pre_hook(_EntryHook(self._collector)))
            foreign = [module for module in modules.values() if carries_foreign_state(module)]
            self._handles += [module.register_forward_pre_hook(_StateHook()) for module in foreign]

    def _listen(self, modules: dict[str, nn.Module]) -> list[Any]:
        """To the outputs of modules, or to what a source of insides has a node hand over."""
        listen = getattr(self.source, "listen", None)
        if listen is None:
            return [module.register_forward_hook(_Hook(self, role)) for role, module in modules.items()]
        ((role, node),) = modules.items()
        after_backward = self.source.gives == "gradient"  # pyright: ignore[reportAttributeAccessIssue]
        take = self._take_gradients if after_backward else partial(self.receive, role, node)
        return [listen(take, self.sums.device)]

    def _take_gradients(self, sums: Tensor) -> None:
        """A backward pass is no replay of a forward pass: whoever has it wants it read."""
        if self.active:
            try:
                self.add(sums)
            except Exception:
                self.spoil()
                raise

    @property
    def width(self) -> int:
        """Values that the signal gives; a source of channels knows how many after its first pass."""
        return self.times * self.source.width + self.extra

    def set_width(self, width: int) -> None:
        """Learn how many channels the source has."""
        self.source.width = width  # type: ignore[misc]
        if len(self.sums) != self.width + 1:
            self.sums = self.sums.new_zeros(self.width + 1)

    def receive(self, role: str, module: nn.Module, output: Tensor) -> None:
        """Take one module's output; with the last of them, read the signal."""
        if not module.training or not self._wanted(module) or not self.active:
            return
        try:
            self._collector.receive(role, output.detach())
        except ValueError:
            self.give_up()
            raise
        except Exception:
            self.spoil()
            raise

    def add(self, *arguments: Any) -> None:
        """Add the signal of what a source gave in one pass."""
        count = getattr(self.signal, "rows_read", self.source.rows)  # a signal may read less than the source gives
        rows = count(*arguments)
        if isinstance(rows, int) and rows == 0:
            return
        first: Tensor = arguments[0]
        width = self.width
        if self.sums.device != first.device or len(self.sums) != width + 1:
            self.sums = torch.zeros(width + 1, dtype=precise(first.device), device=first.device)
        with torch.no_grad():
            values = self.signal(*arguments).to(self.sums.dtype)
            if values.shape != (width,):
                raise ValueError(
                    f"a signal must give {self.times} value per head, ({width},), not {tuple(values.shape)}"
                )
            if isinstance(rows, int):
                self.sums[:-1].add_(values, alpha=rows)
            else:  # counted on the device: asking for the number would stall a GPU
                self.sums[:-1].addcmul_(values, rows.to(values))
            self.sums[-1:].add_(rows)
        self.has_read = True
        self.is_captured |= is_capturing(self.sums)

    def clear(self) -> None:
        """A step is over: forget what was read for it."""
        self.forget()
        self._seen_before, self._seen_now = self._seen_now, False

    def forget(self) -> None:
        """Forget what was read."""
        self.sums.zero_()
        self.has_read = self.is_captured
        self._collector.clear()

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _wanted(self, module: nn.Module) -> bool:
        if torch.compiler.is_compiling():
            self.is_compiled = True
            return torch.is_grad_enabled()
        if is_in_backward():  # activation checkpointing replays the pass
            self.replayed = module
            self.replayed_after_step |= self._seen_before and not self._seen_now
            return not (self._seen_before or self._seen_now)
        if torch.is_grad_enabled():
            self._seen_now = True
            return True
        self._seen_before = False  # the reentrant kind: what is replayed after this pass was not read yet
        return False


class _EntryHook:
    """A pass begins: outputs of one that never got to its end belong to nobody. A copied model keeps a mere shell."""

    def __init__(self, collector: Collector | None) -> None:
        self.collector = collector

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self.collector is not None:
            self.collector.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _EntryHook, (None,)


class _StateHook:
    """Says once that a node begins a pass with the membrane, and the graph, of the last: `reset_net` was forgotten."""

    def __init__(self) -> None:
        self._has_warned = False

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._has_warned or torch.compiler.is_compiling() or is_in_backward() or not torch.is_grad_enabled():
            return
        carried = [value for value in memories(module).values() if isinstance(value, Tensor)]
        if module.training and getattr(module, "step_mode", "m") == "m" and any(v.grad_fn is not None for v in carried):
            self._has_warned = True
            warnings.warn(
                f"a {type(module).__name__} starts from the membrane that the last pass left, and so from its graph: "
                "call functional.reset_net(model) after every step",
                stacklevel=2,
            )


class _Hook(OutputHook):
    """A hook that a copied or unpickled model keeps as a mere shell: only the original reports to the policy."""

    def __init__(self, tap: Tap | None, role: str) -> None:
        self.tap, self.role = tap, role

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.tap is not None:
            self.tap.receive(self.role, module, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self.role)


@contextmanager
def unread(model: nn.Module) -> Iterator[None]:
    """Inside, passes of the model are shown to no tap, whoever it belongs to."""
    hooks = [hook for module in model.modules() for hook in forward_hooks(module) if isinstance(hook, _Hook)]
    taps = [hook.tap for hook in hooks]
    for hook in hooks:
        hook.tap = None
    try:
        yield
    finally:
        for hook, tap in zip(hooks, taps, strict=True):
            hook.tap = tap
