"""Policies that a recipe can name, each with its own fields: who sets the slopes."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from .fields import blaming
from .parts import Family, Kind

if TYPE_CHECKING:
    from torch import nn

    from ..policies import Policy
    from ..policies.trial import Loss
    from ..signals import Signal

BASE = 4.0  # the slope that everybody uses


class PolicyPart(Kind):
    """A way to set the slopes during training."""

    needs_loss: ClassVar[bool] = False  # does `build` take `loss=`, a function of (images, targets)?


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


class MPDAGLPart(PolicyPart):
    """Slopes from the normalisation before each node."""

    kind: Literal["mpd_agl"] = "mpd_agl"

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ..policies import MPD_AGL

        return MPD_AGL(model)


class DSATGOPart(PolicyPart):
    """Thresholds from the membranes, and slopes from the thresholds; changes the forward pass."""

    kind: Literal["ds_atgo"] = "ds_atgo"
    threshold_momentum: float = Field(default=0.1, ge=0, le=1)
    width: float = Field(default=1.0, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ..policies import DS_ATGO

        return DS_ATGO(model, momentum=self.threshold_momentum, width=self.width)


class ASGLPart(PolicyPart):
    """Smooth values among the spikes in training, and slopes trained with the weights."""

    kind: Literal["asgl"] = "asgl"
    p: float = Field(default=0.2, ge=0, le=1)
    slope: float = Field(default=BASE, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model; `seed` is that of the masks."""
        from ..policies import ASGL

        return ASGL(model, self.p, slope=self.slope, seed=seed)


class GainMatchedPart(PolicyPart):
    """Slopes under which gradients keep their size."""

    kind: Literal["gain_matched"] = "gain_matched"
    rate: float = Field(default=0.05, ge=0)
    slope_low: float = Field(default=1.0, gt=0, le=BASE)
    slope_high: float = Field(default=16.0, ge=BASE)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ..policies import GainMatched

        return GainMatched(model, rate=self.rate, low=self.slope_low, high=self.slope_high)


class ConstantsPart(PolicyPart):
    """Thresholds or time constants trained with the weights; changes the forward pass."""

    kind: Literal["learnable_constants"] = "learnable_constants"
    target: Literal["threshold", "time_constant"] = "threshold"
    constants_per: Literal["layer", "group"] = "layer"

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ..policies import LearnableConstants

        return LearnableConstants(model, self.target, per=self.constants_per)


class SagePart(PolicyPart):
    """Slopes that follow a signal of the attention heads, or of the nodes; `spread` is that over heads."""

    kind: Literal["sage"] = "sage"
    signal: Literal[
        "entropy",
        "gini",
        "random",
        "constant",
        "firing_rate",
        "silent_share",
        "membrane_mean",
        "membrane_deviation",
        "near_threshold",
        "gradient_gain",
    ] = "entropy"
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

        signal: Any = self.build_signal(seed)
        return SAGE(
            model,
            warmup_steps=round(self.warmup_epochs * steps_per_epoch),
            source=signal.reads,
            signal=signal,
            spread=self.spread if signal.reads == "attention" else None,
            statistics=Statistics(**self._chosen(Statistics)),
            law=DeadZoneTanh(**self._chosen(DeadZoneTanh)),
            neurons=self.neurons,
            per=self.slopes_per,
            every=self.every,
        )

    def build_signal(self, seed: int) -> "Signal":
        """What SAGE reads."""
        from .. import signals

        return {
            "entropy": lambda: signals.HeadEntropy(self.temperature),
            "gini": lambda: signals.HeadGini(self.temperature),
            "random": lambda: signals.Random(seed),
            "constant": signals.Constant,
            "firing_rate": signals.FiringRate,
            "silent_share": signals.SilentShare,
            "membrane_mean": signals.MembraneMean,
            "membrane_deviation": signals.MembraneDeviation,
            "near_threshold": signals.NearThreshold,
            "gradient_gain": signals.GradientGain,
        }[self.signal]()

    def _chosen(self, kind: type) -> dict[str, Any]:
        """The fields of a dataclass that this part has under the same name."""
        return {field.name: getattr(self, field.name) for field in fields(kind) if hasattr(self, field.name)}


class TryingPart(PolicyPart):
    """Slopes that are tried on the network: steps along their gradients, `trial_length` of the weights' norm long."""

    needs_loss: ClassVar[bool] = True
    slope: float = Field(default=BASE, gt=0)
    trial_length: float = Field(default=0.01, gt=0)


class AlignedPart(TryingPart):
    """Slopes that learn by trial."""

    kind: Literal["aligned"] = "aligned"
    trial_every: int = Field(default=16, ge=1)
    trial_reach: float = Field(default=0.2, ge=0)
    trial_rate: float = Field(default=0.05, ge=0)
    trial_low: float = Field(default=1.0, gt=0)
    trial_high: float = Field(default=16.0, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int, loss: "Loss | None" = None) -> "Policy":
        """Attach the policy to the model; `seed` is that of the directions, the loss else a plain cross entropy."""
        from ..policies import Aligned

        given = self.model_dump(exclude={"kind", "slope"})
        options = {name.removeprefix("trial_"): value for name, value in given.items()}
        return Aligned(model, loss or _cross_entropy(model), slope=self.slope, seed=seed, **options)


class DGSPart(TryingPart):
    """A slope that is searched by finite differences every few epochs."""

    kind: Literal["dgs"] = "dgs"
    search_epochs: float = Field(default=5.0, gt=0)
    search_batches: int = Field(default=200, ge=1)
    search_delta: float = Field(default=0.2, gt=0)
    search_pairs: int = Field(default=1, ge=0)
    search_floor: float = Field(default=0.2, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int, loss: "Loss | None" = None) -> "Policy":
        """Attach the policy to the model; without a loss it is a plain cross entropy."""
        from ..policies import DGS

        every = max(1, round(self.search_epochs * steps_per_epoch))
        given = self.model_dump(include={"search_batches", "search_delta", "search_pairs", "search_floor"})
        options = {name.removeprefix("search_"): value for name, value in given.items()}
        loss = loss or _cross_entropy(model)
        return DGS(model, loss, every=every, slope=self.slope, length=self.trial_length, **options)


def _cross_entropy(model: "nn.Module") -> "Loss":
    from torch.nn.functional import cross_entropy

    return lambda batch: cross_entropy(model(batch[0]), batch[1])


AnyPolicy = (
    FixedPart
    | ScheduledPart
    | LearnablePart
    | SagePart
    | NonePart
    | AlignedPart
    | DGSPart
    | MPDAGLPart
    | DSATGOPart
    | ASGLPart
    | GainMatchedPart
    | ConstantsPart
)
POLICIES = Family(AnyPolicy, default="sage")
