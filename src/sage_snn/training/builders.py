"""From a recipe to the things that train: model, policy, optimizer, schedule."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from ..laws import DeadZoneTanh
from ..models import spikformer
from ..policies import SAGE, Fixed, Learnable, Policy
from ..signals import Constant, HeadEntropy, HeadGini, Random, Signal
from ..statistics import Statistics
from .fields import RecipeError
from .recipe import ModelConfig, PolicyConfig, Recipe

MODELS = {"spikformer": spikformer}


def build_model(config: ModelConfig, *, classes: int, size: int, channels: int) -> nn.Module:
    """The network for images of this size."""
    sizes = config.model_dump(exclude={"name"})
    with _blaming("model"):
        return MODELS[config.name](**sizes, num_classes=classes, image_size=size, in_channels=channels)


def build_signal(config: PolicyConfig, seed: int) -> Signal:
    """What SAGE reads."""
    return {
        "entropy": lambda: HeadEntropy(config.temperature),
        "gini": lambda: HeadGini(config.temperature),
        "random": lambda: Random(seed),
        "constant": Constant,
    }[config.signal]()


def build_policy(config: PolicyConfig, model: nn.Module, steps_per_epoch: int, seed: int) -> Policy:
    """Attach the policy to the model."""
    with _blaming("policy"):
        return _build_policy(config, model, steps_per_epoch, seed)


def _build_policy(config: PolicyConfig, model: nn.Module, steps_per_epoch: int, seed: int) -> Policy:
    if config.kind == "fixed":
        return Fixed(model, config.slope)
    if config.kind == "learnable":
        return Learnable(model, config.per, slope=config.slope)
    return SAGE(
        model,
        warmup_steps=round(config.warmup_epochs * steps_per_epoch),
        signal=build_signal(config, seed),
        spread=config.spread,
        statistics=Statistics(**_chosen(Statistics, config)),
        law=DeadZoneTanh(**_chosen(DeadZoneTanh, config)),
        neurons=config.neurons,
        every=config.every,
    )


@contextmanager
def _blaming(part: str) -> Iterator[None]:
    """What only shows when the data is known is still a mistake of the recipe."""
    try:
        yield
    except ValueError as error:
        raise RecipeError(f"{part}: {error}; change it in the recipe, or with --set {part}.FIELD=VALUE") from None


def _chosen(kind: type, config: PolicyConfig) -> dict[str, Any]:
    """The fields of a dataclass that the recipe has under the same name."""
    return {field.name: getattr(config, field.name) for field in fields(kind) if hasattr(config, field.name)}


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
