"""Losses that a recipe can name, each with its own fields."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .parts import Family, Kind

if TYPE_CHECKING:
    from ..losses import TET, CrossEntropy, SumCrossEntropy


class LossPart(Kind):
    """What training makes small."""


class CrossEntropyPart(LossPart):
    """Cross entropy of the mean of the logits over time."""

    kind: Literal["cross_entropy"] = "cross_entropy"

    def build(self) -> "CrossEntropy":
        """A callable of step logits (T, B, classes) and targets."""
        from ..losses import CrossEntropy

        return CrossEntropy()


class TETPart(LossPart):
    """Cross entropy of every time step, and the distance of logits to `target` in the share `weight`."""

    kind: Literal["tet"] = "tet"
    weight: float = Field(default=0.05, ge=0, le=1)
    target: float = 1.0

    def build(self) -> "TET":
        """A callable of step logits (T, B, classes) and targets."""
        from ..losses import TET

        return TET(weight=self.weight, target=self.target)


class SumCrossEntropyPart(LossPart):
    """Cross entropy of the sum of the logits over time."""

    kind: Literal["sum_cross_entropy"] = "sum_cross_entropy"

    def build(self) -> "SumCrossEntropy":
        """A callable of step logits (T, B, classes) and targets."""
        from ..losses import SumCrossEntropy

        return SumCrossEntropy()


AnyLoss = CrossEntropyPart | TETPart | SumCrossEntropyPart
LOSSES = Family(AnyLoss, default="cross_entropy")
