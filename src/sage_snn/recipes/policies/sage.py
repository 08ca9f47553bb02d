"""SAGE, with each choice that the paper leaves open as a field."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ..fields import blaming
from .part import BASE, PolicyPart

if TYPE_CHECKING:
    from torch import nn

    from ...policies import Policy
    from ...signals import Signal


class SagePart(PolicyPart):
    """Slopes that follow a signal of the attention heads, or of the nodes; `spread` is that over heads.

    Slopes per channel follow the firing rate unless a signal is named: attention has no channels.
    """

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
    # Not `per`, which means something else to a learnable policy.
    slopes_per: Literal["group", "head", "channel", "token"] = "group"
    every: int = Field(default=1, ge=1)
    warmup_epochs: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _bounds_hold_the_base(self) -> "SagePart":
        if not self.low <= BASE <= self.high:
            raise ValueError(f"low ({self.low}) and high ({self.high}) must hold the base slope 4 between them")
        return self

    @model_validator(mode="after")
    def _channels_have_firing_rates(self) -> "SagePart":
        if self.slopes_per == "channel" and "signal" not in self.model_fields_set:
            object.__setattr__(self, "signal", "firing_rate")  # not as a given field: another grain has another signal
        return self

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model; `seed` is that of a random signal."""
        from ...laws import DeadZoneTanh
        from ...policies import SAGE
        from ...statistics import Statistics

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
        from ... import signals

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
