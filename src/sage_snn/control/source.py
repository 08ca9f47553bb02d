"""What a group lets a policy read while the network trains: outputs of modules, arranged as a signal takes them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from .outputs import watching


class Source(Protocol):
    """Modules whose outputs are read together, and what a signal is given of them."""

    @property
    def width(self) -> int:
        """Values that a signal gives for this source: one per head of attention, one for the spikes of a node."""
        ...

    @property
    def read(self) -> Callable[[], tuple[Any, ...]] | None:
        """In place of modules: called once per policy step, gives the signal's arguments."""
        ...

    def modules(self) -> dict[str, nn.Module]:
        """The modules by their roles."""
        ...

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Any, ...]:
        """Arguments of the signal from one output per role."""
        ...

    def rows(self, *arguments: Any, **named: Any) -> int:
        """How much this pass counts among those of a step."""
        ...

    def __str__(self) -> str:
        """What is read where, in words."""
        ...


@dataclass(eq=False)
class Firing:
    """The spikes of one node: a signal is given them as they leave it, (T, B, ...) or (B, ...) step by step.

    Channels are on the axis after the batch, or on the last.
    """

    node: nn.Module
    width: int = 1
    read: None = None
    channels_last: bool = False

    def modules(self) -> dict[str, nn.Module]:
        """The node."""
        return {"spikes": self.node}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor]:
        """The spikes as they are."""
        return (outputs["spikes"],)

    def rows(self, spikes: Tensor) -> int:
        """Neurons times images times time steps."""
        return spikes.numel()

    def __str__(self) -> str:
        return f"the spikes of {type(self.node).__name__}"


class Collector:
    """Gathers the outputs of a source's modules in a pass, and hands them on when the last has come."""

    def __init__(self, source: Source, take: Callable[..., None]) -> None:
        self.source, self.take = source, take
        self._roles = len(source.modules()) if source.read is None else 0
        self._held: dict[str, Tensor] = {}

    def receive(self, role: str, output: Tensor) -> None:
        """Take one module's output."""
        self._held[role] = output
        if len(self._held) == self._roles:
            outputs, self._held = self._held, {}
            self.take(*self.source.arrange(outputs))

    def clear(self) -> None:
        """Forget what has come so far."""
        self._held = {}


@contextmanager
def reading(takes: Iterable[tuple[Source, Callable[..., None]]]) -> Iterator[None]:
    """Inside, what each source gives in a pass is handed to the function beside it."""
    collectors = [Collector(source, take) for source, take in takes if source.read is None]
    looks = [(module, partial(c.receive, role)) for c in collectors for role, module in c.source.modules().items()]
    with watching(looks):
        yield
