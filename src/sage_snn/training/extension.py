"""Finished runs that are asked for more epochs: what they become, and what is said of it."""

from typing import Any

import torch

from ..recipes.recipe import Recipe, differences
from ..runs.checkpoint import has_checkpoint
from ..runs.folder import RunError, RunFolder
from .builders import build_schedule


def with_lengths(recipe: Recipe, before: Recipe | None) -> Recipe:
    """The recipe with the lengths that the run had before it was extended, which nobody has to repeat."""
    if before is None or recipe.extended_from or not before.extended_from:
        return recipe
    kept = tuple(epochs for epochs in before.extended_from if epochs < recipe.epochs)
    return recipe.model_copy(update={"extended_from": kept})


def differs_in_length(recipe: Recipe, before: Recipe) -> bool:
    """Is it the same training but for its number of epochs?"""
    keys = {key for key, *_ in differences(before, recipe)}
    return "epochs" in keys and keys <= {"epochs", "extended_from"}


def extended(recipe: Recipe, before: Recipe, folder: RunFolder) -> tuple[Recipe, str]:
    """The recipe of the finished run with its new length, and what that means for the learning rate."""
    if before.stages:
        raise RunError(
            f"{folder.path} was trained in stages, and only runs of one stage can be extended; "
            f"start a run from its weights: --init-from {folder.path}"
        )
    if not has_checkpoint(folder.checkpoints):
        raise RunError(
            f"{folder.path} has no checkpoint to go on from; copy it there again, or start a new run from its weights: "
            f"--init-from {folder.path}"
        )
    longer = recipe.model_copy(update={"extended_from": (*before.extended_from, before.epochs)})
    last: dict[str, Any] = (folder.metrics() or [{}])[-1]
    told = "" if last.get("lr") is None else f"{last['lr']:.2g} at its end, "
    return longer, (
        f"{folder.path} is finished and goes on, from {before.total_epochs} to {longer.total_epochs} epochs. The "
        f"learning rate, {told}is from here on that of a training of {longer.epochs} epochs at the same place: "
        f"{_rate(longer, before.total_epochs):.2g} next. This is not the result of {longer.epochs} epochs in one go; "
        "recipe.yaml says so (extended_from)"
    )


def begin(folder: RunFolder, recipe: Recipe) -> None:
    """Make an unfinished run of a finished one; a kill in between leaves one or the other."""
    folder.write_recipe(recipe, folder.applied())
    (folder.path / "summary.json").unlink(missing_ok=True)  # from here on it is not finished
    folder.weights.unlink(missing_ok=True)  # the same weights are in the checkpoint


def _rate(recipe: Recipe, epoch: int) -> float:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.lr)
    build_schedule(recipe, optimizer).step(epoch)
    return optimizer.param_groups[0]["lr"]
