"""From a recipe to what moves the weights: optimizer and schedule."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from ..policies import Policy
from ..recipes.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module, policy: Policy) -> torch.optim.Optimizer:
    """Weight decay reaches tensors of two and more dimensions only; the policy's parameters are never decayed."""
    options: dict[str, Any] = {"momentum": 0.9} if recipe.optimizer == "sgd" else {}
    optimizer = create_optimizer_v2(
        model, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay, filter_bias_and_bn=True, **options
    )
    own = list(policy.parameters())
    if own:
        optimizer.add_param_group({"params": own, "lr": recipe.lr, "weight_decay": 0.0})
    return optimizer


def build_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer) -> CosineLRScheduler:
    """Cosine per epoch, the warm-up counted inside, then constant at the minimum through the cooldown."""
    return CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs,
        lr_min=recipe.min_lr,
        warmup_t=recipe.warmup_epochs,
        warmup_lr_init=recipe.warmup_lr,
        cycle_limit=1,
    )
