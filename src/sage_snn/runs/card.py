"""What has to be known of a run's network to use it elsewhere: its inputs, how they are normalised, its classes."""

from typing import Any

import torch
from torch import Tensor

from ..data import DataError
from ..data.mixing import BATCH
from .run import Run, Which


def card_of(run: Run, which: Which = "last") -> dict[str, Any]:
    """Plain data that goes along with an exported network; what an older run did not write down is read from its data.

    Where the data is gone too, mean, deviation and names of the classes are left out.
    """
    applied = run.folder.applied()
    normalisation = {name: applied.get(name) for name in ("mean", "std", "classes")}
    if None in normalisation.values():
        try:
            normalisation = {name: list(getattr(run.data, name)) for name in normalisation}
        except DataError:
            normalisation = {}
    model, example = run.recipe.model, example_of(run)
    return {
        "recipe": run.recipe.name,
        "data": run.recipe.data,
        "weights": which,
        "time_steps": model.time_steps,
        "input": [*example.shape[:BATCH], *example.shape[BATCH + 1 :]],
        **normalisation,
        "sage-snn": (applied.get("versions") or {}).get("sage-snn"),
    }


def example_of(run: Run) -> Tensor:
    """A batch of two images, or recordings, of the right size, without the data set where the run has its shape."""
    shape = run.shape
    images = torch.zeros(2, shape["channels"], shape["size"], shape["size"])
    return images.expand(run.recipe.model.time_steps, *images.shape).clone() if run.is_events else images
