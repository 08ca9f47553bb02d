"""Policies that follow normalisation, membranes or gradients of each node."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..fields import blaming
from .part import BASE, PolicyPart

if TYPE_CHECKING:
    from torch import nn

    from ...policies import Policy


class MPDAGLPart(PolicyPart):
    """Slopes from the normalisation before each node."""

    kind: Literal["mpd_agl"] = "mpd_agl"

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import MPD_AGL

        return MPD_AGL(model)


class DSATGOPart(PolicyPart):
    """Thresholds from the membranes, and slopes from the thresholds; changes the forward pass."""

    keeps_steps: ClassVar[bool] = True
    kind: Literal["ds_atgo"] = "ds_atgo"
    threshold_momentum: float = Field(default=0.1, ge=0, le=1)
    width: float = Field(default=1.0, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model."""
        from ...policies import DS_ATGO

        return DS_ATGO(model, momentum=self.threshold_momentum, width=self.width)


class ASGLPart(PolicyPart):
    """Smooth values among the spikes in training, and slopes trained with the weights."""

    kind: Literal["asgl"] = "asgl"
    p: float = Field(default=0.2, ge=0, le=1)
    slope: float = Field(default=BASE, gt=0)

    @blaming("policy")
    def build(self, model: "nn.Module", steps_per_epoch: int, seed: int) -> "Policy":
        """Attach the policy to the model; `seed` is that of the masks."""
        from ...policies import ASGL

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
        from ...policies import GainMatched

        return GainMatched(model, rate=self.rate, low=self.slope_low, high=self.slope_high)
