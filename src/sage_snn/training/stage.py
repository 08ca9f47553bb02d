"""A finished training that another one starts from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..recipes.recipe import Recipe


@dataclass(frozen=True)
class Stage:
    """Its folder, and what it ended with."""

    name: str
    recipe: Recipe
    folder: Path
    summary: dict[str, Any]

    def told(self) -> dict[str, Any]:
        """What the summary of the whole run says of it."""
        model = self.recipe.model
        kept = {key: self.summary[key] for key in ("epochs", "seconds", "last_top1", "best_top1")}
        return {"name": self.name} | kept | {"time_steps": model.time_steps if model.is_spiking else 1}
