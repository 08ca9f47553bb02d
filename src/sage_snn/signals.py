"""Signals: from spikes to values, and to their spread (equations 1 to 4).

q, k: (T, B, H, N, K) with T time steps, B batch, H heads, N tokens, K head width, of any dtype.
A signal of attention is any callable `(q, k, scale) -> (H,)`, averaged over rows; one of a node gives (1,) from its
spikes (firing), the moments (T, 4) of its charged membrane, or the two sums (2,) of its squared gradients.
`reads` is the source that it is made for. Nothing here ever carries a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .compat import precise, sent
from .kernels import attention

Signal = Callable[..., Tensor]
Spread = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class HeadEntropy:
    """Normalised attention entropy per head, in [0, 1] (equations 2, 3).

    Args:
        temperature: of the softmax over keys; smaller is sharper.
        over: "keys": a distribution per query row; "map": one over all pairs.
        images: of the batch that are read, the first so many; None: all.
    """

    reads: ClassVar[str] = "attention"
    temperature: float = 0.25
    over: Literal["keys", "map"] = "keys"  # Choice: decision 6
    images: int | None = None  # Choice: decision 16

    def __post_init__(self) -> None:
        _require_positive("temperature", self.temperature)
        _require_positive("images", 1 if self.images is None else self.images)
        if self.over not in ("keys", "map"):
            raise ValueError(f"over must be 'keys' or 'map', not {self.over!r}")

    def rows_read(self, q: Tensor, k: Tensor, scale: float) -> int:
        """Query rows of the images that are read."""
        return _rows(q, self.images)

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per head (H,), float64."""
        q, k = _first(q, self.images), _first(k, self.images)
        return attention.entropy(q, k, scale, self.temperature, self.over == "map")

    def each_row(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per query row (T, B, H, N), float64, whose mean over T, B and N is that of the head."""
        if self.over == "map" or self.images is not None:
            raise ValueError(f"{self} has no value for each row of each image; use over='keys' and images=None")
        return attention.row_entropy(q.detach(), k.detach(), scale, self.temperature)


@dataclass(frozen=True)
class HeadGini:
    """Gini impurity `1 - sum p^2` of the attention per head, not normalised; `temperature`, `images` as for entropy."""

    reads: ClassVar[str] = "attention"
    temperature: float = 0.25
    images: int | None = None

    def __post_init__(self) -> None:
        _require_positive("temperature", self.temperature)
        _require_positive("images", 1 if self.images is None else self.images)

    def rows_read(self, q: Tensor, k: Tensor, scale: float) -> int:
        """Query rows of the images that are read."""
        return _rows(q, self.images)

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per head (H,), float64."""
        return attention.gini(_first(q, self.images), _first(k, self.images), scale, self.temperature)


@dataclass(frozen=True)
class HeadStatistics:
    """Entropy and Gini impurity per head at several temperatures from the same spikes: (2, temperatures, H), flat."""

    reads: ClassVar[str] = "attention"
    temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            _require_positive("temperature", temperature)

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """All values of all heads, float64, the heads innermost."""
        entropy, gini = attention.attention_statistics(q.detach(), k.detach(), scale, list(self.temperatures))
        return torch.cat([entropy, gini]).flatten()


@dataclass
class Random:
    """Control: uniform noise per head that knows nothing of the network; its generator, from `seed`, is saved."""

    reads: ClassVar[str] = "attention"
    seed: int = 0
    _generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per head (H,), float64."""
        return self._noise(q, q.shape[2])

    def each_row(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per query row (T, B, H, N), float64."""
        return self._noise(q, *q.shape[:4])

    def _noise(self, q: Tensor, *sizes: int) -> Tensor:
        drawn = torch.rand(sizes, dtype=torch.float64, generator=self._generator)
        return sent(drawn.to(precise(q.device)), q.device)

    def state_dict(self) -> dict[str, Tensor]:
        """State of the generator."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict()` was taken."""
        self._generator.set_state(state["generator"].cpu())


@dataclass(frozen=True)
class Constant:
    """Control: the same `value` for every head, so that the spread is 0 and every slope stays at its base."""

    reads: ClassVar[str] = "attention"
    value: float = 0.0

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per head (H,), float64."""
        return q.new_full((q.shape[2],), self.value, dtype=precise(q.device))

    def each_row(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """One value per query row (T, B, H, N), float64."""
        return q.new_full(q.shape[:4], self.value, dtype=precise(q.device))


@dataclass(frozen=True)
class FiringRate:
    """Share of a node's neurons, images and time steps that spike, in [0, 1]."""

    reads: ClassVar[str] = "firing"

    def __call__(self, spikes: Tensor) -> Tensor:
        """One value (1,), in float64 where the device has it."""
        fired = torch.count_nonzero(spikes.detach())
        return (fired.to(precise(spikes.device)) / spikes.numel()).reshape(1)

    def each_channel(self, spikes: Tensor, axis: int) -> Tensor:
        """One value per channel (C,) of spikes (T, B, ...) of height 1; their mean is that of the node."""
        positions = [a for a in range(2, spikes.ndim) if a != axis % spikes.ndim]
        # Added up, not counted, which takes twenty times as long; float32 is exact for the positions of an image.
        images = spikes.detach().sum(positions, dtype=torch.float32) if positions else spikes.detach()
        return images.sum((0, 1), dtype=precise(spikes.device)) / (spikes.numel() // images.shape[2])


@dataclass(frozen=True)
class SilentShare:
    """Share of a node's neurons (channel and position) that spike for no image and in no time step of a pass.

    In single-step mode every time step is a pass of its own.
    """

    reads: ClassVar[str] = "firing"

    def __call__(self, spikes: Tensor) -> Tensor:
        """One value (1,) in [0, 1] of the spikes (T, B, ...), in float64 where the device has it."""
        silent = ~spikes.detach().flatten(0, 1).any(0)
        return silent.to(precise(spikes.device)).mean().reshape(1)


@dataclass(frozen=True)
class MembraneMean:
    """Mean distance of the charged membrane to the threshold, over neurons, images and time steps."""

    reads: ClassVar[str] = "membrane"

    def __call__(self, moments: Tensor) -> Tensor:
        """One value (1,) of the moments (T, 4): count, sum of distances, sum of their squares, number near."""
        count, total, _, _ = moments.sum(0)
        return (total / count.clamp_min(1)).reshape(1)


@dataclass(frozen=True)
class MembraneDeviation:
    """Population deviation of the charged membrane's distance to the threshold, over neurons, images and steps."""

    reads: ClassVar[str] = "membrane"

    def __call__(self, moments: Tensor) -> Tensor:
        """One value (1,) of the moments (T, 4)."""
        count, total, squares, _ = moments.sum(0)
        count = count.clamp_min(1)
        return (squares / count - (total / count).square()).clamp_min(0).sqrt().reshape(1)


@dataclass(frozen=True)
class NearThreshold:
    """Share of the charged membranes nearer to the threshold than the node's `near`, in [0, 1]."""

    reads: ClassVar[str] = "membrane"

    def __call__(self, moments: Tensor) -> Tensor:
        """One value (1,) of the moments (T, 4)."""
        count, _, _, near = moments.sum(0)
        return (near / count.clamp_min(1)).reshape(1)


@dataclass(frozen=True)
class GradientGain:
    """How much longer the gradient leaves a node, toward its currents, than it came, from its spikes."""

    reads: ClassVar[str] = "gradient"

    def __call__(self, sums: Tensor) -> Tensor:
        """One value (1,) of the sums (2,) of squares: of the gradients of spikes, and of currents."""
        return (sums[1] / sums[0]).sqrt().reshape(1)


def population_std(values: Tensor) -> Tensor:
    """Population standard deviation over heads: one head gives 0, never NaN (equation 4)."""
    return values.std(correction=0)


def sample_std(values: Tensor) -> Tensor:
    """Sample standard deviation over heads; needs two heads."""
    if values.numel() < 2:
        raise ValueError("the sample deviation of one head is undefined; use spread='std' (population)")
    return values.std(correction=1)


SPREADS: dict[str, Spread] = {"std": population_std, "sample_std": sample_std, "mean": torch.mean}


def spread_of_rows(spread: Spread, rows: Tensor) -> Tensor:
    """The spread over heads of each query row: (T, B, H, N) -> (T, B, N)."""
    if spread is SPREADS["mean"]:
        return rows.mean(2)
    if spread in (SPREADS["std"], SPREADS["sample_std"]):  # in two passes: torch's own takes ten times as long here
        squares = (rows - rows.mean(2, keepdim=True)).square_()
        return squares.sum(2).div_(rows.shape[2] - (spread is SPREADS["sample_std"])).sqrt_()
    return torch.vmap(torch.vmap(torch.vmap(spread, in_dims=1)))(rows)


def check_spread(spread: Spread, widths: set[int]) -> None:
    """Refuse a spread that does not make one number of the values of a group."""
    for count in widths:
        value = spread(torch.zeros(count, dtype=precise("cpu")))
        if not isinstance(value, Tensor) or value.shape != ():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"a spread must give a tensor () for the values ({count},) of all heads, not {value!r}")


def head_entropy(q: Tensor, k: Tensor, scale: float = 0.125, temperature: float = 0.25) -> Tensor:
    """Normalised attention entropy per head, (H,) float64 in [0, 1]."""
    return _checked(HeadEntropy(temperature), q, k, scale)


def head_gini(q: Tensor, k: Tensor, scale: float = 0.125, temperature: float = 0.25) -> Tensor:
    """Gini impurity of the attention per head, (H,) float64 in [0, 1 - 1/N]."""
    return _checked(HeadGini(temperature), q, k, scale)


def entropy_dispersion(q: Tensor, k: Tensor, scale: float = 0.125, temperature: float = 0.25) -> Tensor:
    """How much the heads disagree: population deviation of their entropies, () float64."""
    return population_std(head_entropy(q, k, scale, temperature))


def gini_dispersion(q: Tensor, k: Tensor, scale: float = 0.125, temperature: float = 0.25) -> Tensor:
    """Population deviation over heads of the Gini impurity, () float64."""
    return population_std(head_gini(q, k, scale, temperature))


def _checked(signal: Signal, q: Tensor, k: Tensor, scale: float) -> Tensor:
    attention.require_pair(q, k)
    values = signal(q, k, scale)
    if not values.isfinite().all():
        heads = [i for i, finite in enumerate(values.isfinite()) if not finite]
        raise ValueError(
            f"non-finite scores in heads {heads}: query or key hold NaN or infinity, or the batch is empty; "
            "sage_snn.check(model, images, labels) tells where they come from"
        )
    return values


def _first(x: Tensor, images: int | None) -> Tensor:
    """(T, B, H, N, K) of the first so many images of the batch, of all with None."""
    return x.detach() if images is None else x.detach()[:, :images]


def _rows(q: Tensor, images: int | None) -> int:
    times, batch, _, tokens, _ = q.shape
    return times * (batch if images is None else min(batch, images)) * tokens


def _require_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, not {value}")
