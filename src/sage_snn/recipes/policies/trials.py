"""Policies that try slopes on the network."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..fields import blaming
from .part import BASE, PolicyPart

if TYPE_CHECKING:
    from torch import nn

    from ...policies import Policy
    from ...policies.trial import Loss


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
        from ...policies import Aligned

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
        from ...policies import DGS

        every = max(1, round(self.search_epochs * steps_per_epoch))
        given = self.model_dump(include={"search_batches", "search_delta", "search_pairs", "search_floor"})
        options = {name.removeprefix("search_"): value for name, value in given.items()}
        loss = loss or _cross_entropy(model)
        return DGS(model, loss, every=every, slope=self.slope, length=self.trial_length, **options)


def _cross_entropy(model: "nn.Module") -> "Loss":
    from torch.nn.functional import cross_entropy

    return lambda batch: cross_entropy(model(batch[0]), batch[1])
