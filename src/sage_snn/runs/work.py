"""What a machine really does for an image: operations of the path that runs, and seconds, layer by layer."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from spikingjelly.activation_based import functional
from spikingjelly.activation_based.op_counter import DispatchCounterMode
from torch import Tensor, nn

from ..control import is_node
from ..kernels.additions import additions_told
from .operations import DenseCounter, layer_name, own_counts

_ENTRANCES = ("forward", "forward_static")  # by which a layer is called


@dataclass(frozen=True)
class Done:
    """By one layer, per image: multiply-accumulates, or additions where its product walks events."""

    macs: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """Layers by name, and what stands between them (pooling, sums, copies) in seconds per image."""

    layers: dict[str, Done]
    rest: float
    threads: int

    @property
    def macs(self) -> float:
        """Multiply-accumulates and additions per image."""
        return sum(layer.macs for layer in self.layers.values())

    @property
    def seconds(self) -> float:
        """Per image, all in all."""
        return self.rest + sum(layer.seconds for layer in self.layers.values())


@torch.no_grad()
def measure_work(network: nn.Module, batches: Iterable[Tensor]) -> Work:
    """Count the operations that run and time every layer, on batches of images (B, C, H, W) or events (T, B, C, H, W).

    The first warms up.
    """
    held, counter, clock = list(batches), DenseCounter(), _Clock()
    network.eval()
    _pass(network, held[0])
    with DispatchCounterMode([counter]):
        _pass(network, held[0])
    with _timed(network, clock):
        for batch in held:
            _pass(network, batch)
    # Whoever counts torch's operations sees dense products: those over events tell of themselves.
    counts = own_counts(counter, network) | _additions(network, held[0])
    sizes = [batch.shape[int(batch.ndim == 5)] for batch in held]  # of events, time comes first
    images = sum(sizes)
    names = [name for name in clock.seconds if name]
    layers = {name: Done(counts.get(name, 0.0) / sizes[0], clock.seconds[name] / images) for name in names}
    return Work(layers, clock.seconds[""] / images, torch.get_num_threads())


def _additions(network: nn.Module, batch: Tensor) -> dict[str, float]:
    """Of layers whose products walk events."""
    made, clock = defaultdict[str, float](float), _Clock()

    def add(count: int) -> None:
        made[clock.inside[-1]] += count

    with _timed(network, clock), additions_told(add):
        _pass(network, batch)
    return made


def _pass(network: nn.Module, batch: Tensor) -> None:
    functional.reset_net(network)
    network(batch)


class _Clock:
    """Seconds that passed inside each layer and in none within it; the layers that run now, from the outside in."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inside: list[str] = []
        self._within: list[float] = []  # seconds of the layers inside those that run now

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def run(*args: Any, **options: Any) -> Any:
            self._within.append(0.0)
            self.inside.append(name)
            started = _now()
            result = call(*args, **options)
            passed = _now() - started
            self.inside.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + passed - self._within.pop()
            if self._within:
                self._within[-1] += passed
            return result

        return run


def _now() -> float:
    if torch.accelerator.is_available():  # it works behind the host
        torch.accelerator.synchronize()
    return time.perf_counter()


@contextmanager
def _timed(network: nn.Module, clock: _Clock) -> Iterator[None]:
    """Inside, the clock sees every call of a layer, and of the network itself as ""; no hook stops a fused kernel."""
    names = {layer_name(network, name) for name, module in network.named_modules() if _works(module)} | {""}
    watched = [
        (vars(network.get_submodule(name)), entrance, clock.timed(name, call))
        for name in names
        for entrance in _ENTRANCES
        if (call := getattr(network.get_submodule(name), entrance, None)) is not None
    ]
    for attributes, entrance, call in watched:
        attributes[entrance] = call
    try:
        yield
    finally:
        for attributes, entrance, _ in watched:
            del attributes[entrance]


def _works(module: nn.Module) -> bool:
    """Does it hold weights, or fire?"""
    weighs = getattr(module, "weight", None) is not None and not any(module.children())
    return weighs or is_node(module)
