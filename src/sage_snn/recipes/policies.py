"""Policies that a recipe can name, each with its own fields: who sets the slopes."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from .fields import blaming
from .parts import Family, Kind

if TYPE_CHECKING:
    from torch import nn

    from ..policies import Policy
    from ..signals import Signal

BASE = 4.0  # the slope that everybody uses


class PolicyPart(Kind):
    """A way to set the slopes during training."""


class NonePart(PolicyPart):
    """Slopes as the nodes were built with; for ANNs, which have none, too."""

    kind: Literal["none"] = "none"

    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Nothing is attached."""
        from ..policies.none import Unchanged

        return Unchanged(model)


class FixedPart(PolicyPart):
    """The same slope for the whole training."""

    kind: Literal["fixed"] = "fixed"
    slope: float = Field(default=BASE, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ..policies import Fixed

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
        from ..policies import Scheduled

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
        from ..policies import Learnable

        return Learnable(model, self.per, slope=self.slope)


class SagePart(PolicyPart):
    """Slopes that follow a signal of the attention heads."""

    kind: Literal["sage"] = "sage"
    signal: Literal["entropy", "gini", "random", "constant"] = "entropy"
    spread: Literal["std", "sample_std", "mean"] = "std"
    temperature: float = Field(default=0.25, gt=0)
    decay: float = Field(default=0.95, ge=0, lt=1)
    first: Literal["observation", "zero"] = "observation"
    running: Literal["cumulative", "exponential"] = "cumulative"
    momentum: float = Field(default=0.01, gt=0, le=1)
    restart: bool = False
    eps: float = Field(default=1e-8, ge=0)
    relative_eps: bool = False
    center: bool = True
    gain: float = 0.5
    dead_zone: float = Field(default=0.25, ge=0)
    low: float = Field(default=3.0, gt=0)
    high: float = Field(default=5.0, gt=0)
    continuous: bool = False
    neurons: Literal["block", "attention", "all"] = "block"
    slopes_per: Literal["group", "head", "channel", "token"] = (
        "group"  # a learnable policy's `per` means something else
    )
    every: int = Field(default=1, ge=1)
    warmup_epochs: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _bounds_hold_the_base(self) -> "SagePart":
        if not self.low <= BASE <= self.high:
            raise ValueError(f"low ({self.low}) and high ({self.high}) must hold the base slope 4 between them")
        return self

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model; `seed` is that of a random signal."""
        from ..laws import DeadZoneTanh
        from ..policies import SAGE
        from ..statistics import Statistics

        return SAGE(
            model,
            warmup_steps=round(self.warmup_epochs * steps_per_epoch),
            signal=self.build_signal(seed),
            spread=self.spread,
            statistics=Statistics(**self._chosen(Statistics)),
            law=DeadZoneTanh(**self._chosen(DeadZoneTanh)),
            neurons=self.neurons,
            per=self.slopes_per,
            every=self.every,
        )

    def build_signal(self, seed: int) -> "Signal":
        """What SAGE reads."""
        from ..signals import Constant, HeadEntropy, HeadGini, Random

        return {
            "entropy": lambda: HeadEntropy(self.temperature),
            "gini": lambda: HeadGini(self.temperature),
            "random": lambda: Random(seed),
            "constant": Constant,
        }[self.signal]()

    def _chosen(self, kind: type) -> dict[str, Any]:
        """The fields of a dataclass that this part has under the same name."""
        return {field.name: getattr(self, field.name) for field in fields(kind) if hasattr(self, field.name)}


AnyPolicy = FixedPart | ScheduledPart | LearnablePart | SagePart | NonePart
POLICIES = Family(AnyPolicy, default="sage")
