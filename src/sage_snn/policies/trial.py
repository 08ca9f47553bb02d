"""Trials: what other slopes would do to the true loss, found out on the network itself and taken back to the bit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..compat import norms, precise
from ..control import Group, group_nodes, is_compiled, owners, unchanged
from .policy import BASE, Policy, chosen_groups, device_of, ranks
from .settings import differences, settings_of

Loss = Callable[[Any], Tensor]
# In steps, of which a forward pass is a third and a backward pass two: all of it on half the batch, and a forward pass.
COST = 2 / 3


class Trying(Policy):
    """A policy that tries slopes every now and then: a step along the gradient that they give, then the loss there.

    `loss(batch)` calls the model in the way of the training and gives a scalar tensor. `step(batch)` takes the batch
    that was just trained on: its outer half gives the gradients, its inner half the losses. `step(batch, other)` has
    them from two batches. All steps that are tried are `length` times the norm of the trained weights long, so that
    only directions are compared. Afterwards weights, gradients, buffers, membranes and generators are as before.
    """

    needs_batch = True

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        slope: float,
        length: float,
        blocks: Sequence[Group] | None,
        groups: Sequence[Group] | None,
    ) -> None:
        if not callable(loss):
            raise TypeError(
                "loss must be a function of a batch, such as lambda batch: F.cross_entropy(model(batch[0]), "
                f"batch[1]), not {type(loss).__name__}"
            )
        if not (slope > 0 and length > 0):
            raise ValueError(f"slope and length must be positive, not {slope} and {length}")
        groups = chosen_groups(model, blocks, groups)
        nodes = group_nodes(groups)
        super().__init__(model, nodes, groups)
        if is_compiled(model) and not all(self._nodes.takes_tensor):
            self.remove()
            raise ValueError(
                "the model is compiled, and SpikingJelly's nodes would compile it anew for each slope that is tried; "
                "build it with spiking_neuron=sage_snn.LIFNode, or train it uncompiled"
            )
        self.loss, self.slope, self.length = loss, slope, length
        device = device_of(model)
        self._owner = torch.tensor(owners(groups, nodes), device=device)
        self._ratios = torch.tensor(self._nodes.bases, dtype=precise(device), device=device) / BASE
        self._slopes = torch.full((len(groups),), slope, dtype=precise(device), device=device)
        self._done = 0
        self._nodes.hold(live=False, device=device)
        self._write(self._slopes)

    @property
    def slopes(self) -> Tensor:
        """Slopes in force (groups,)."""
        return self._slopes.clone()

    def step(self, batch: Any = None, other: Any = None) -> None:
        """Once per optimizer step, with the batch that was just trained on: a trial if one is due."""
        super().step()
        if batch is None:
            raise ValueError(
                f"{type(self).__name__} tries slopes on the batch that was just trained on: call step(batch), with "
                "what loss(batch) takes; a trainer that shows no batches cannot use it"
            )
        if self._is_due():
            self._learn(*(halves(batch) if other is None else (batch, other)))
            self._write(self._slopes)
        self._done += 1

    @property
    def _why_not_captured(self) -> str:
        return "trials take half a batch, a graph takes whole ones; use another policy"

    def _is_due(self) -> bool:
        """Is a trial to be made in this step?"""
        raise NotImplementedError

    def _learn(self, tried: Any, measured: Any) -> None:
        """Try slopes, and set `_slopes` by what was found."""
        raise NotImplementedError

    def _try(self, candidates: Sequence[Tensor], tried: Any, measured: Any) -> Tensor:
        """True loss on `measured` (candidates,) after a step along each candidate's gradient on `tried`.

        A collective call: gradients and losses are means over the ranks, so that all find the same.
        """
        model = self._model()
        assert model is not None
        weights = [p for p in model.parameters() if p.requires_grad]
        losses: list[Tensor] = []
        try:
            for slopes in candidates:
                self._write(slopes)
                with unchanged(model), torch.enable_grad():
                    gradients = torch.autograd.grad(self._scalar(tried), weights, materialize_grads=True)
                with stepped(weights, _mean_over_ranks(gradients), self.length), unchanged(model), torch.no_grad():
                    losses.append(self._scalar(measured).to(self._slopes))
        finally:
            self._write(self._slopes)
        return torch.stack(_mean_over_ranks(losses))

    def _scalar(self, batch: Any) -> Tensor:
        value = self.loss(batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            told = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"loss(batch) must give a scalar tensor, not {told}; take the mean over the batch")
        return value.reshape(())

    def _write(self, slopes: Tensor) -> None:
        self._nodes.write(slopes[self._owner] * self._ratios)

    @property
    def _settings(self) -> dict[str, Any]:
        """What the state depends on."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Settings and steps done besides what every policy has."""
        settings = {name: settings_of(thing) for name, thing in self._settings.items()}
        return super().state_dict() | {"settings": settings, "steps": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the step of the state, to the same bits."""
        super().load_state_dict(state)
        if lines := differences(state["settings"], self._settings):
            told = "\n  ".join(lines)
            raise ValueError(
                f"this state is of another {type(self).__name__}:\n  {told}\nattach the same one before loading"
            )
        self._done = int(state["steps"])
        self._slopes = state["slopes"].to(self._slopes, copy=True)
        self._write(self._slopes)

    def describe(self) -> str:
        """The slopes besides what every policy tells."""
        slopes = ", ".join(f"{slope:.4g}" for slope in self._slopes.tolist())
        return f"{super().describe()}\n  slopes {slopes} after {self._done} steps"


def halves(batch: Any) -> tuple[Any, Any]:
    """The outer and the inner half of a batch, whose tensors all have the images first.

    Mixing blends image i with image n - 1 - i, as timm does it: the two are in the same half, so that neither has seen
    the other.
    """
    sizes = sorted(set(_sizes(batch)))
    if len(sizes) != 1 or sizes[0] < 4:
        told = "unlike" if len(sizes) > 1 else "too few" if sizes else "no tensors in it"
        raise ValueError(
            f"a batch with first axes of {sizes} cannot be halved ({told}): give step() tensors, or a tuple, list or "
            "dict of them, with at least 4 images along the first axis; or two batches, step(batch, other)"
        )
    quarter = sizes[0] // 4
    outer = _each(batch, lambda x: torch.cat([x[:quarter], x[-quarter:]]))
    return outer, _each(batch, lambda x: x[quarter:-quarter])


def _each(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor that has axes changed."""
    if isinstance(batch, Tensor):
        return change(batch) if batch.ndim else batch
    if isinstance(batch, Mapping):
        return {key: _each(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        items = [_each(item, change) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def _sizes(batch: Any) -> list[int]:
    sizes: list[int] = []
    _each(batch, lambda x: (sizes.append(len(x)), x)[1])
    return sizes


@contextmanager
def stepped(weights: Sequence[Tensor], gradients: Sequence[Tensor], length: float) -> Iterator[None]:
    """Inside, the weights are a step against the gradients away, `length` times their own norm; zero moves nothing."""
    before = [weight.detach().clone() for weight in weights]
    steepness = _norm(gradients)
    scale = torch.where(steepness > 0, length * _norm(before) / steepness, 0.0)
    try:
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= scale.to(gradient) * gradient
        yield
    finally:
        with torch.no_grad():
            for weight, start in zip(weights, before, strict=True):
                weight.copy_(start)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([norm.to(precise(norm.device)) for norm in norms(tensors)]).norm()


def _mean_over_ranks(tensors: Sequence[Tensor]) -> list[Tensor]:
    if ranks() == 1:
        return list(tensors)
    means = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]  # gradients may be mere views
    for mean in means:
        dist.all_reduce(mean)
        mean /= ranks()
    return means
