"""Trackers of experiments, through Lightning's loggers: Weights & Biases and MLflow, on a server or offline."""

import json
import os
import uuid
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from .. import files
from ..recipes.recipe import Recipe
from ..runs.folder import RunError, RunFolder, write_atomically

# Recipe's name -> packages, of which one is needed.
_PACKAGES = {"wandb": ("wandb",), "mlflow": ("mlflow-skinny", "mlflow")}
_CURES = {
    "wandb": "log in (`wandb login`), set WANDB_MODE=offline",
    "mlflow": "start the server that MLFLOW_TRACKING_URI names, or unset it",
}
_PROJECT = "sage-snn"
LINKS = "loggers.json"  # what a run is called there, so that it goes on as the same one


def require_loggers(names: Sequence[str]) -> None:
    """Refuse before anything is trained what could not be logged."""
    for name in names:
        if name in _PACKAGES and not any(map(_is_installed, _PACKAGES[name])):
            raise RunError(
                f'the recipe asks for the logger {name}, which is not installed: pip install "sage-snn[{name}]", '
                "or leave it out (--set loggers=[tensorboard])"
            )


def open_tracker(name: str, folder: RunFolder, recipe: Recipe) -> "Tracker":
    """The run of this folder there, begun or gone on with."""
    require_loggers([name])
    links = _links(folder)
    known = links.get(name)
    try:
        logger, link = _OPEN[name](folder, known)
        if known is None:
            logger.log_hyperparams(recipe.model_dump(mode="json", exclude={"about", "data_dir", "init_from"}))
    except Exception as error:  # theirs are of many kinds
        told = (str(error).splitlines() or [type(error).__name__])[0]
        lost = f", or delete {folder.path / LINKS} to begin a new one there" if known else ""
        raise RunError(
            f"{name} cannot follow this run ({told}); {_CURES[name]}, leave it out (--set loggers=[tensorboard]){lost}"
        ) from None
    write_atomically(folder.path / LINKS, (json.dumps(links | {name: link}, indent=2) + "\n").encode())
    return Tracker(logger)


class Tracker:
    """All points over the steps of the run: there they share one axis."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def add(self, epoch: int, step: int, points: dict[str, float], by_step: dict[int, dict[str, float]]) -> None:
        """Send."""
        for number, told in by_step.items():
            self._logger.log_metrics(told, step=number)
        self._logger.log_metrics(points | {"epoch": epoch}, step=step)

    def close(self, *, failed: bool) -> None:
        """Say how it ended."""
        if hasattr(self._logger.experiment, "finish"):  # of Weights & Biases
            self._logger.experiment.finish(exit_code=int(failed))
        else:
            self._logger.finalize("KILLED" if failed else "success")


def _wandb(folder: RunFolder, known: dict[str, str] | None) -> tuple[Any, dict[str, str]]:
    from lightning.pytorch.loggers import WandbLogger

    link = known or {"id": uuid.uuid4().hex[:12], "project": os.environ.get("WANDB_PROJECT", _PROJECT)}
    options: dict[str, Any] = {"id": link["id"], "project": link["project"], "resume": "allow"}
    logger = WandbLogger(name=folder.path.resolve().name, save_dir=folder.path, **options)
    _ = logger.experiment  # which begins it
    return logger, link


def _mlflow(folder: RunFolder, known: dict[str, str] | None) -> tuple[Any, dict[str, str]]:
    from lightning.pytorch.loggers import MLFlowLogger

    # MLflow's own default; a store in files is no longer accepted by it.
    here = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{os.path.abspath('mlflow.db')}"
    uri = known["uri"] if known else here
    logger = MLFlowLogger(
        experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT),
        run_name=folder.path.resolve().name,
        tracking_uri=uri,
        run_id=known["run_id"] if known else None,
    )
    _ = logger.experiment
    return logger, {"run_id": str(logger.run_id), "uri": uri}


_OPEN: dict[str, Callable[..., tuple[Any, dict[str, str]]]] = {"wandb": _wandb, "mlflow": _mlflow}
_LINK_KEYS = {"wandb": {"id", "project"}, "mlflow": {"run_id", "uri"}}


def _links(folder: RunFolder) -> dict[str, dict[str, str]]:
    path = folder.path / LINKS
    if not path.is_file():
        return {}
    try:
        links = files.parse_json(files.read_text(path))
        if not all(set(links.get(name, keys)) == keys for name, keys in _LINK_KEYS.items()):
            raise ValueError("it lacks names of runs")
        if not all(isinstance(value, str) for link in links.values() for value in link.values()):
            raise ValueError("names are texts")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); delete it: the loggers begin a new run then") from None
    return links


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
