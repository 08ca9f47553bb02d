"""Policies that look at nothing: slopes as they are, given, scheduled, or trained with the weights."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..fields import blaming
from .part import BASE, PolicyPart

if TYPE_CHECKING:
    from torch import nn

    from ...policies import Policy


class NonePart(PolicyPart):
    """Slopes as the nodes were built with; for ANNs, which have none, too."""

    kind: Literal["none"] = "none"

    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Nothing is attached."""
        from ...policies.none import Unchanged

        return Unchanged(model)


class FixedPart(PolicyPart):
    """The same slope for the whole training."""

    kind: Literal["fixed"] = "fixed"
    slope: float = Field(default=BASE, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import Fixed

        return Fixed(model, self.slope)


class ScheduledPart(PolicyPart):
    """From one slope to another over the first epochs, constant afterwards."""

    kind: Literal["scheduled"] = "scheduled"
    start: float = Field(default=2.0, gt=0)
    end: float = Field(default=4.0, gt=0)
    shape: Literal["linear", "exponential", "cosine"] = "exponential"
    schedule_epochs: float = Field(default=10.0, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import Scheduled

        steps = max(1, round(self.schedule_epochs * steps_per_epoch))
        return Scheduled(model, self.start, self.end, steps=steps, shape=self.shape)


class LearnablePart(PolicyPart):
    """Slopes trained with the weights, from `slope` on."""

    kind: Literal["learnable"] = "learnable"
    slope: float = Field(default=BASE, gt=0)
    per: Literal["network", "block", "layer", "time"] = "network"

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import Learnable

        return Learnable(model, self.per, slope=self.slope)


class ConstantsPart(PolicyPart):
    """Thresholds or time constants trained with the weights; changes the forward pass."""

    kind: Literal["learnable_constants"] = "learnable_constants"
    target: Literal["threshold", "time_constant"] = "threshold"
    constants_per: Literal["layer", "group"] = "layer"

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import LearnableConstants

        return LearnableConstants(model, self.target, per=self.constants_per)
