"""The check-up of a recipe's network before its training, or of a run's, on one training batch."""

from typing import Any

import torch
from torch import Tensor, nn

from ..checkup import Report, check
from ..data import Data, Loader, train_transform
from ..recipes.recipe import Recipe
from .run import Run, data_of


def check_recipe(recipe: Recipe) -> Report:
    """Of the fresh network, with the slopes that its policy starts with."""
    torch.manual_seed(recipe.seed)
    data = data_of(recipe)
    return _checked(recipe, data, recipe.model.build(**data.shape))


def check_run(run: Run) -> Report:
    """Of the network as the run left it, with its slopes."""
    steps = run.folder.applied().get("steps_per_epoch", 1)
    return _checked(run.recipe, run.data, run.network(), steps, run.policy_state)


def _checked(
    recipe: Recipe, data: Data, network: nn.Module, steps_per_epoch: int = 1, state: dict[str, Any] | None = None
) -> Report:
    loss, size = recipe.loss.build(), min(recipe.batch_size // recipe.accumulate, len(data.train))
    loader = Loader(data.train, train_transform(recipe.augmentation, data), size, seed=recipe.seed, shuffle=True)
    batch = next(loader.epoch(0, 0, 1))

    def value(logits: Tensor, labels: Tensor) -> Tensor:
        return loss(logits[None], labels)  # of the mean over time, also where training looks at every step

    with recipe.policy.build(network, steps_per_epoch, recipe.seed) as policy:
        if state is not None:
            policy.load_state_dict(state)
        return check(network, batch.images, batch.labels, loss=value)
