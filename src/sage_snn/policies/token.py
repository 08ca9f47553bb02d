"""SAGE with a slope per token: each query row decides, in the same pass, for the neurons of its token.

T time steps, B batch, H heads, N tokens, K head width.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..control import TokenSlope, TokenSlopes
from ..signals import Signal, spread_of_rows
from .grain import PerGroup, Track


class PerToken(PerGroup):
    """A slope per token, time step and image, compared with the other tokens of its image.

    Mean and deviation are those of all tokens of the block up to the step before. What a signal gives besides a value
    per head: the mean of the spreads, of their squares, and of the slopes.
    """

    extra = 3

    def _start(self, device: torch.device) -> list[Track]:
        self._tokens: list[TokenSlopes] = []
        alone = [group.width == 1 for group in self.groups]
        tracks = [Track(torch.tensor([one], device=device), self.base, are_some_alone=one) for one in alone]
        self._last = [track.slopes.reshape(1, 1, 1) for track in tracks]
        return tracks

    @property
    def slopes(self) -> Tensor:
        """Mean slope of each block (blocks,), over the tokens of the last step."""
        return torch.cat([track.slopes for track in self.tracks])

    @property
    def fine_slopes(self) -> list[Tensor]:
        """Of the last pass: (T, B, N) per block."""
        return [slopes.clone() for slopes in self._last]

    @property
    def keeps_base(self) -> list[bool]:
        """Blocks with one head."""
        return [group.width == 1 for group in self.groups]

    def signal(self, index: int) -> Signal:
        """Also sets the slopes of the pass."""
        return partial(self._read, index)

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Slopes that nodes get at the beginning of each pass, filled in when query and key are known."""
        self._tokens = [TokenSlopes(group.layout, self.give_up) for group in self.groups]  # type: ignore[attr-defined]
        pairs = enumerate(zip(self.owner, self.nodes.bases, strict=True))
        self.nodes.refine({i: TokenSlope(self._tokens[owner], base, device) for i, (owner, base) in pairs})

    def observe(self, readings: Sequence[Tensor]) -> None:
        """Take the moments of all tokens of a step into the history; the slopes have been used already."""
        self.readings = [values[:-3] for values in readings]
        means, squares, slopes = torch.stack([values[-3:] for values in readings]).unbind(1)
        statistics = self.method.statistics
        self.dispersion = means
        scores = [statistics.score(track.history, mean) for track, mean in zip(self.tracks, means, strict=True)]
        self.zscores = torch.cat(scores)  # of the mean token: centred, it would be 0
        for track, mean, square, slope in zip(self.tracks, means, squares, slopes, strict=True):
            track.history = statistics.gather(track.history, mean, square)
            track.slopes = torch.where(slope.isfinite(), slope, track.slopes)

    def decide(self, *, can_look: bool) -> None:
        """The slopes of the next step are decided in its passes."""

    def write(self) -> None:
        """Nothing is written between steps."""

    def begin_step(self, *, may_move: bool) -> None:
        """The passes of the next step come now."""
        super().begin_step(may_move=may_move)
        for tokens in self._tokens:
            tokens.may_move, tokens.device = may_move, self._ratios.device
            tokens.clear()

    def _read(self, index: int, q: Tensor, k: Tensor, scale: float) -> Tensor:
        rows: Tensor = self.method.signal.each_row(q, k, scale)  # type: ignore[attr-defined]
        values = spread_of_rows(self.method.spread, rows)
        # Not under torch.compile, which is refused when the step ends: asking for values would break its graph.
        can_move = self.may_move and rows.shape[2] > 1 and not torch.compiler.is_compiling()
        slopes = self._slopes_of(self.tracks[index], values) if can_move else torch.full_like(values, self.base)
        if can_move:
            self._tokens[index].fill(slopes / self.base, q.shape[2], q.shape[4])
        self._last[index] = slopes
        moments = torch.stack([values.mean(), values.square().mean(), slopes.mean()])
        return torch.cat([rows.mean((0, 1, 3)), moments])

    def _slopes_of(self, track: Track, values: Tensor) -> Tensor:
        """(T, B, N) of the tokens' spreads."""
        scores = self.method.statistics.score(track.history, values)
        if self.method.statistics.center:
            # Over each image's own tokens: no image may change the gradients of another.
            scores = scores - scores.nanmean((0, 2), keepdim=True)
        slopes = torch.where(scores.isnan(), self.base, self.method.law(scores))
        if values.device.type == "cpu" and not (slopes > 0).all():
            raise ValueError(f"the law gave slopes down to {float(slopes.min())}: slopes must be positive")
        return slopes

    def _load_slopes(self, state: dict[str, Any], device: torch.device) -> None:
        for track, slope in zip(self.tracks, state["slopes"].to(device), strict=True):
            track.slopes = slope.reshape(1)
