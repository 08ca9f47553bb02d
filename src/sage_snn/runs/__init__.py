"""Runs: what a training leaves in its folder, and what can be measured of it."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .assessment import Assessment, assess
    from .folder import RunError, RunFolder
    from .health import check_recipe, check_run
    from .inspection import Inspection, inspect_run
    from .prediction import Predictions, predict
    from .run import Run, load, open_run

__all__ = [
    "Assessment",
    "Inspection",
    "Predictions",
    "Run",
    "RunError",
    "RunFolder",
    "assess",
    "check_recipe",
    "check_run",
    "inspect_run",
    "load",
    "open_run",
    "predict",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".assessment": ("Assessment", "assess"),
        ".folder": ("RunError", "RunFolder"),
        ".health": ("check_recipe", "check_run"),
        ".inspection": ("Inspection", "inspect_run"),
        ".prediction": ("Predictions", "predict"),
        ".run": ("Run", "load", "open_run"),
    },
)
