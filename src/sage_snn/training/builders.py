"""From a recipe to what moves the weights: optimizer and schedule."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.scheduler.multistep_lr import MultiStepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import nn

from ..policies import Policy
from ..policies.policy import device_of
from ..recipes.recipe import Recipe

# A recipe's name -> timm's, and its options.
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("adamw", {}),
    "adam": ("adam", {}),
    "amsgrad": ("adam", {"amsgrad": True}),
    "sgd": ("sgd", {"momentum": 0.9}),
}


def build_optimizer(recipe: Recipe, model: nn.Module, policy: Policy) -> torch.optim.Optimizer:
    """Weight decay reaches tensors of two and more dimensions (`decay_all`: all of them), never the policy's own."""
    name, options = _OPTIMIZERS[recipe.optimizer]
    # In one launch on CUDA, where it asks the device itself whether a gradient scaler has found infinities; any other
    # is asked by the host, which waits for the answer.
    fused: dict[str, Any] = {"fused": True} if device_of(model).type == "cuda" else {}
    optimizer = create_optimizer_v2(
        model,
        opt=name,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        filter_bias_and_bn=not recipe.decay_all,
        **options,
        **fused,
    )
    own = list(policy.parameters())
    if own:
        optimizer.add_param_group({"params": own, "lr": recipe.lr, "weight_decay": 0.0})
    return optimizer


class Stretches:
    """Schedules one after the other, each until its own end."""

    def __init__(self, schedules: dict[int, Scheduler]) -> None:
        self._schedules = schedules  # end -> schedule, in their order

    def step(self, epoch: int) -> None:
        """Set the rate of this epoch."""
        ends = [end for end in self._schedules if epoch < end] or list(self._schedules)[-1:]
        self._schedules[ends[0]].step(epoch)


def build_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer) -> Scheduler | Stretches:
    """Per epoch, the warm-up counted inside: cosine and its minimum through the cooldown, or in steps, or constant.

    A run that was extended has the schedule of each of its lengths until that length was reached.
    """
    last = _schedule(recipe, optimizer, recipe.epochs)
    if not recipe.extended_from:
        return last
    first = {n + recipe.cooldown_epochs: _schedule(recipe, optimizer, n) for n in recipe.extended_from}
    return Stretches(first | {recipe.total_epochs: last})


def _schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, epochs: int) -> Scheduler:
    warmup: dict[str, Any] = {"warmup_t": recipe.warmup_epochs, "warmup_lr_init": recipe.warmup_lr}
    if recipe.schedule == "cosine" and epochs:
        return CosineLRScheduler(optimizer, t_initial=epochs, lr_min=recipe.min_lr, cycle_limit=1, **warmup)
    shares = recipe.decay_at if recipe.schedule == "steps" else ()
    ends = [round(share * epochs) + 1 for share in shares]  # timm lowers the rate one epoch before
    return MultiStepLRScheduler(optimizer, decay_t=ends, decay_rate=recipe.decay_rate, warmup_prefix=False, **warmup)
