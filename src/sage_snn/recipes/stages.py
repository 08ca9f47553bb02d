"""Trainings that come before a recipe's own, and what is done to their weights."""

from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_serializer

from .fields import RecipeError, flat
from .parts import Part

if TYPE_CHECKING:
    from .recipe import Recipe


class StagePart(Part):
    """The recipe with other settings, trained in a folder of its own inside the run's; the next starts from it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dict(flat(value))


class BalancePart(Part):
    """Thresholds from data, layer by layer: `factor` times the largest current, or a percentile of the currents."""

    images: int = Field(default=512, ge=1)  # of the training set, without augmentation
    percentile: float = Field(default=100.0, gt=0, le=100)
    factor: float = Field(default=1.0, gt=0)
    in_turn: bool = False  # layers are multiplied one after the other, not all at the end
    averaged: bool = False  # of the neurons' mean currents over time
    time_steps: int | None = Field(default=None, ge=1)  # of the balancing; None: those of the network

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, write: Any) -> dict[str, Any]:
        """So that the keys of other runs stay as they are."""
        return {key: value for key, value in write(self).items() if value or key not in ("in_turn", "averaged")}


def stage_recipes(recipe: "Recipe") -> list["Recipe"]:
    """The recipes of the stages in order, without the recipe's own."""
    whole = recipe.model_copy(update={"stages": (), "balance": None})
    return [_stage(whole, stage, is_first=index == 0) for index, stage in enumerate(recipe.stages)]


def _stage(whole: "Recipe", stage: StagePart, *, is_first: bool) -> "Recipe":
    for field in ("stages", "init_from", "seed"):
        if field in stage.settings:
            raise RecipeError(f"stages: {stage.name} sets {field}, which all stages share; remove it there")
    told = ({} if is_first else {"init_from": None}) | {
        "about": {},
        "observe": {},
        "name": f"{whole.name}-{stage.name}",
    }
    try:
        recipe = whole.updated(told | stage.settings)
    except RecipeError as error:
        raise RecipeError(f"stages: {stage.name}: {error}") from None
    if recipe.model.name != whole.model.name or recipe.model.time_steps != whole.model.time_steps:
        mine, other = (f"{r.model.name} with T={r.model.time_steps}" for r in (recipe, whole))
        raise RecipeError(
            f"stages: {stage.name} trains {mine}, the recipe {other}: weights pass between stages of one network and "
            "one T; remove model.name and model.time_steps from the stage (an ANN sees an image once in any case)"
        )
    return recipe
