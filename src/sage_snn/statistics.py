"""Statistics over training: smoothing, normalising in time, centring over blocks (equations 5 to 7).

All tensors are (blocks,), in float64 where the device has it. A block whose observation is not finite keeps its history
and gets z = NaN.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .compat import precise


class History(NamedTuple):
    """What is remembered of the observations; a fresh one knows nothing."""

    observed: Tensor  # observations smoothed so far
    average: Tensor  # the exponential average as it is updated (biased when it starts from zero)
    seen: Tensor  # observations in mean and variance: fewer than observed after a restart
    mean: Tensor  # running mean of the smoothed observations
    variance: Tensor  # their running population variance

    @classmethod
    def start(cls, blocks: int, device: torch.device | str = "cpu") -> "History":
        """No observation yet."""
        return cls(*torch.zeros(5, blocks, dtype=precise(device), device=device).unbind())

    def restarted(self) -> "History":
        """Forget mean and variance, keep the smoothing."""
        zero = torch.zeros_like(self.mean)
        return self._replace(seen=zero, mean=zero, variance=zero)


@dataclass(frozen=True)
class Statistics:
    """How dispersions become scores. `update` is a pure function; `History` is its state.

    Args:
        decay: of the exponential average of the dispersion.
        first: where that begins: at the first "observation", or at "zero" with bias correction.
        running: mean and variance: "cumulative" or "exponential".
        momentum: of the exponential ones.
        restart: begin both anew after warm-up.
        eps: added to the deviation before a division.
        relative_eps: `eps` is a share of the running mean.
        center: subtract the mean over groups; not for one group alone.
    """

    decay: float = 0.95
    first: Literal["observation", "zero"] = "observation"  # Choice: decision 4
    running: Literal["cumulative", "exponential"] = "cumulative"  # Choice: decision 5
    momentum: float = 0.01
    restart: bool = False
    eps: float = 1e-8  # Choice: decision 8, early deviations are smaller than the usual 1e-5
    relative_eps: bool = False
    center: bool = True  # Choice: decision 14

    def __post_init__(self) -> None:
        if self.first not in ("observation", "zero"):
            raise ValueError(f"first must be 'observation' or 'zero', not {self.first!r}")
        if self.running not in ("cumulative", "exponential"):
            raise ValueError(f"running must be 'cumulative' or 'exponential', not {self.running!r}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), not {self.decay}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"momentum must be in (0, 1], not {self.momentum}")
        if self.eps < 0:
            raise ValueError(f"eps must not be negative, not {self.eps}")

    def update(self, history: History, observed: Tensor) -> tuple[History, Tensor, Tensor]:
        """The next history, the smoothed observations, and the (centred) scores of the given ones."""
        observed = observed.to(history.mean)
        finite = observed.isfinite()
        average, count, seen = self._average(history, observed), history.observed + 1, history.seen + 1
        smoothed = average if self.first == "observation" else self._smoothed(average, count)
        mean, variance = self._moments(history, smoothed, seen)
        after = History(count, average, seen, mean, variance)
        after = History(*(torch.where(finite, new, old) for new, old in zip(after, history, strict=True)))

        scores = torch.where(finite, self._scores(smoothed, mean, variance), torch.nan)
        if self.center:
            scores = scores - scores.nanmean()
        return after, self._smoothed(after.average, after.observed), scores

    def gather(self, history: History, mean: Tensor, square: Tensor) -> History:
        """The next history after a step of many observations, given their mean and the mean of their squares.

        Every step counts alike, however many they were; nothing is smoothed.
        """
        mean, square = mean.to(history.mean), square.to(history.mean)
        spread, change, seen = (square - mean.square()).clamp_min(0), mean - history.mean, history.seen + 1
        weight = torch.where(history.seen == 0, 1 / seen, self.momentum) if self.running == "exponential" else 1 / seen
        variance = (1 - weight) * (history.variance + weight * change.square()) + weight * spread
        after = History(history.observed + 1, history.average, seen, history.mean + weight * change, variance)
        finite = mean.isfinite() & square.isfinite()
        return History(*(torch.where(finite, new, old) for new, old in zip(after, history, strict=True)))

    def score(self, history: History, values: Tensor) -> Tensor:
        """How far values are from the history's mean, in its deviations, not centred; 0 while there is none."""
        return self._scores(values, history.mean, history.variance)

    def _average(self, history: History, observed: Tensor) -> Tensor:
        blended = self.decay * history.average + (1 - self.decay) * observed
        return blended if self.first == "zero" else torch.where(history.observed == 0, observed, blended)

    def _smoothed(self, average: Tensor, count: Tensor) -> Tensor:
        if self.first == "zero":
            return average / (1 - self.decay**count)
        return torch.where(count == 0, torch.nan, average)

    def _moments(self, history: History, smoothed: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        change = smoothed - history.mean
        if self.running == "cumulative":  # Welford, with the variance in place of the sum of squares
            mean = history.mean + change / seen
            return mean, history.variance + (change * (smoothed - mean) - history.variance) / seen
        # Not `where(..., 1.0, momentum)`: two numbers would give float32.
        weight = torch.where(history.seen == 0, torch.ones_like(history.seen), self.momentum)
        mean = history.mean + weight * change
        return mean, torch.where(history.seen == 0, 0.0, (1 - weight) * (history.variance + weight * change.square()))

    def _scores(self, smoothed: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        deviation = variance.sqrt()
        eps = self.eps * mean.abs() if self.relative_eps else self.eps
        return torch.where(deviation > 0, (smoothed - mean) / (deviation + eps), 0.0)
