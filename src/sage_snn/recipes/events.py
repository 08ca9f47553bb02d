"""What a recipe for event data may ask for."""

from typing import TYPE_CHECKING

from ..data.sets import EVENTS

if TYPE_CHECKING:
    from .recipe import Recipe


def require_events_fit(recipe: "Recipe") -> None:
    """A ValueError where a recipe treats events as images, or images as events."""
    is_events, model = recipe.data in EVENTS, recipe.model
    recipe.augmentation.require_for(events=is_events)
    if is_events and not model.is_spiking:
        raise ValueError(
            f"{recipe.data} are events in time, and {model.name} is an ANN, which has none; choose a neuron"
        )
    if is_events and (asked := max(recipe.observe.steps, default=0)) > model.time_steps:
        raise ValueError(
            f"a recording of events has model.time_steps ({model.time_steps}) frames, and observe.steps asks for "
            f"{asked}; let it end at model.time_steps"
        )
