"""Event-driven products beside dense ones: how their cost grows with the firing rate, up to where nothing is gained."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.events import are_off, dense_products, event_conv, event_map
from .measures import Row, inside
from .timing import alternate

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Convolution:
    """3 x 3, as in the stem of Spikformer-4-384 at T=4 and batch 8."""

    inputs: int
    outputs: int
    side: int
    stride: int = 1
    images: int = 32

    def __str__(self) -> str:
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"3x3 convolution {self.inputs} -> {self.outputs}, {self.side}x{self.side}{stride}, {self.images} images"

    def operands(self, rate: float) -> tuple[Tensor, Tensor]:
        """Spikes and weights."""
        x = _spikes(rate, self.images, self.side, self.side, self.inputs).permute(0, 3, 1, 2)
        return x, torch.randn(self.outputs, self.inputs, 3, 3)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Currents."""
        return event_conv(x, weight, None, self.stride)


@dataclass(frozen=True)
class Map:
    """Token-wise, of as many tokens as T=4 and batch 8 have."""

    inputs: int
    outputs: int
    tokens: int = 2048

    def __str__(self) -> str:
        return f"token-wise map {self.inputs} -> {self.outputs}, {self.tokens} tokens"

    def operands(self, rate: float) -> tuple[Tensor, Tensor]:
        """Spikes and weights."""
        return _spikes(rate, self.tokens, self.inputs), torch.randn(self.outputs, self.inputs)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Currents."""
        return event_map(x, weight)


Product = Convolution | Map
PRODUCTS = (
    Convolution(96, 192, 32),
    Convolution(192, 384, 16),
    Convolution(384, 384, 8),
    Map(384, 384),
    Map(1536, 384),
)
FEW = (Convolution(384, 384, 8), Map(384, 384))


def event_driven(products: tuple[Product, ...], repetitions: int, rates: tuple[float, ...] = RATES) -> Iterator[Row]:
    """Forward, and the gradient of the weight; the ratio is to the dense product in the same run."""
    for product in products:
        for part, make in (("forward", _forward), ("weight gradient", _weight_gradient)):
            for rate in rates:
                run = make(product, *product.operands(rate))
                times = alternate({"dense": inside(dense_products, run), "event-driven": run}, repetitions)
                peer = times["dense"].minimum
                for name, timing in times.items():
                    firing, ratio = f"{100 * rate:g} % firing, {name}", peer / timing.minimum
                    yield Row("event-driven", f"{product}, {part}", firing, timing.minimum, timing.median, "s", ratio)


def _forward(product: Product, x: Tensor, weight: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        product.product(x, weight)

    return run


def _weight_gradient(product: Product, x: Tensor, weight: Tensor) -> Callable[[], None]:
    """Each of the two keeps its own graph; only the gradient is timed."""
    leaf = weight.detach().requires_grad_()
    graphs = [product.product(x, leaf)]
    with dense_products():
        graphs.append(product.product(x, leaf))
    grad = torch.randn_like(graphs[0])

    def run() -> None:
        torch.autograd.grad(graphs[are_off()], leaf, grad, retain_graph=True)

    return run


def _spikes(rate: float, *shape: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return (torch.rand(shape, generator=generator, device="cpu") < rate).float()
