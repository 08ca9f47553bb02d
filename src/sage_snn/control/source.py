"""What a group lets a policy read while the network trains: outputs of modules, arranged as a signal takes them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..compat import precise
from .outputs import watching
from .target import require_open


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

    def rows(self, *arguments: Any, **named: Any) -> int | Tensor:
        """How much this pass counts among those of a step; a tensor () where only the device knows."""
        ...

    def __str__(self) -> str:
        """What is read where, in words."""
        ...


@dataclass(eq=False)
class Firing:
    """The spikes of one node: a signal is given them as they leave it, (T, B, ...), with T = 1 step by step.

    Channels are on the axis after the batch, or on the last.
    """

    node: nn.Module
    width: int = 1
    read: None = None
    channels_last: bool = False
    gives: ClassVar[str] = "firing"

    def modules(self) -> dict[str, nn.Module]:
        """The node."""
        return {"spikes": self.node}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor]:
        """The spikes of all time steps of the pass."""
        is_one_step = getattr(self.node, "step_mode", "m") == "s"
        return (outputs["spikes"].unsqueeze(0) if is_one_step else outputs["spikes"],)

    def rows(self, spikes: Tensor) -> int:
        """Neurons times images times time steps."""
        return spikes.numel()

    def __str__(self) -> str:
        return f"the spikes of {type(self.node).__name__}"


@dataclass(eq=False)
class Membrane:
    """The charged membrane of one of our nodes: a signal is given its moments (T, 4), made by the kernels.

    Per time step: the count, the sum of the distances to the threshold, the sum of their squares, and the number of
    those below the node's `near`.
    """

    node: Any
    width: int = 1
    read: None = None
    gives: ClassVar[str] = "membrane"

    def __post_init__(self) -> None:
        require_open([self.node], "its membranes")

    def modules(self) -> dict[str, nn.Module]:
        """The node."""
        return {"moments": self.node}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor]:
        """The moments as they are."""
        return (outputs["moments"],)

    def rows(self, moments: Tensor) -> Tensor:
        """Neurons times images times time steps."""
        return moments[:, 0].sum()

    def listen(self, take: Callable[[Tensor], None], device: torch.device) -> "Listener":
        """Have the moments of every pass in training mode handed over."""
        self.node.membranes = listener = Listener(self.node, "membranes", take)
        return listener

    def __str__(self) -> str:
        return f"the membranes of {type(self.node).__name__}"


@dataclass(eq=False)
class Gradient:
    """The gradients at one of our nodes: a signal is given two sums of squares (2,), of its spikes' and its currents'.

    They are there after a backward pass.
    """

    node: Any
    width: int = 1
    read: None = None
    gives: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
        require_open([self.node], "its gradients")

    def modules(self) -> dict[str, nn.Module]:
        """The node."""
        return {"sums": self.node}

    def arrange(self, outputs: dict[str, Tensor]) -> tuple[Tensor]:
        """The sums as they are."""
        return (outputs["sums"],)

    def rows(self, sums: Tensor) -> int:
        """Every backward pass counts the same."""
        return 1

    def listen(self, take: Callable[[Tensor], None], device: torch.device) -> "Listener":
        """Have the sums of every backward pass handed over."""
        self.node.gradients = sums = torch.zeros(2, dtype=precise(device), device=device, requires_grad=True)
        listener = Listener(self.node, "gradients", take)
        sums.register_post_accumulate_grad_hook(listener.handed)
        return listener

    def __str__(self) -> str:
        return f"the gradients of {type(self.node).__name__}"


class Listener:
    """What a node hands its insides to; a copied model keeps a mere shell."""

    def __init__(self, node: Any, where: str, take: Callable[[Tensor], None] | None) -> None:
        self.node, self.where, self.take = node, where, take

    def __call__(self, told: Tensor) -> None:
        """Hand it on."""
        if self.take is not None:
            self.take(told)

    def handed(self, leaf: Tensor) -> None:
        """The same of what a backward pass has left in the gradient of a leaf, which begins anew."""
        told, leaf.grad = leaf.grad, None
        if told is not None:
            self(told)

    def remove(self) -> None:
        """The node keeps its insides to itself again."""
        setattr(self.node, self.where, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Listener, (None, self.where, None)


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
