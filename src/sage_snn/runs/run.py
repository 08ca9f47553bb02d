"""A run's folder opened again: recipe, data, network, policy."""

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..data import Data, DataError, Loader, load_data, test_transform
from ..data.sets import EVENTS
from ..recipes.recipe import Recipe
from .checkpoint import load_checkpoint
from .folder import RunError, RunFolder
from .places import folder_named, is_named
from .weights import load_weights

Which = Literal["last", "best"]


def open_run(path: str | Path, data_dir: str | Path | None = None) -> "Run":
    """The run in a folder, finished or not; `data_dir` says where the data is now, if it moved.

    `shipped:NAME` is one of the package, `hub:OWNER/NAME` one of the Hugging Face hub, @REVISION behind it if wanted.
    """
    folder = RunFolder(folder_named(path))
    if not folder.path.is_dir():
        raise RunError(f"there is no folder {folder.path}; give the folder that `sage-snn train` wrote (its --out)")
    recipe = folder.recipe()
    if recipe is None:
        raise RunError(f"{folder.path} holds no recipe.yaml, so it is not a run's; give the --out of `sage-snn train`")
    there = {} if data_dir is None else {"data_dir": str(data_dir)}
    run = Run(folder, recipe.updated(there) if there else recipe)
    if is_named(path):  # nothing is written into the package, nor into a cache
        run.exports = Path()
        run.pictures = Path("inspection") / str(path).partition(":")[2].replace("/", "-").replace("@", "-")
    return run


def load(path: str | Path, which: Which = "last", data_dir: str | Path | None = None) -> nn.Module:
    """The trained network of a run's folder, in eval mode and without a policy; the data is not needed.

    `load("shipped:digits")` is one of the package, `load("hub:OWNER/NAME")` one of the Hugging Face hub.
    Only a run that was stopped before it had written what it trains on asks for the data, at `data_dir` if it moved.

    Args:
        path: the folder of a run.
        which: "last" weights, or those of the "best" epoch.
        data_dir: where the data is now, for such a run.
    """
    return open_run(path, data_dir).network(which)


def data_of(recipe: Recipe, *, download: bool = False) -> Data:
    """The data of a recipe, with the subsets it asks for."""
    data = load_data(
        recipe.data,
        recipe.data_dir,
        train_images=recipe.train_images,
        test_images=recipe.test_images,
        subset=recipe.subset,
        download=download,
        classes_file=recipe.classes_file,
        per_class=recipe.per_class,
        time_steps=recipe.model.time_steps,
    )
    if len(data.classes) < 2:
        raise DataError(f"{data.name}: all images are of one class; give images of two or more to tell apart")
    return data


class Run:
    """What a run left in its folder; data, weights and checkpoint are read when they are asked for."""

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.exports = folder.path  # where its exports go when nobody says
        self.pictures = folder.path / "inspection"  # where what is drawn of it goes

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.path.resolve().name

    @cached_property
    def data(self) -> Data:
        """The data of the recipe, with the subsets it asks for."""
        return data_of(self.recipe)

    @property
    def shape(self) -> dict[str, int]:
        """What the network knows of the data, as the run wrote it down, else from the data."""
        written = self.folder.applied().get("shape") or {}
        is_whole = written.keys() == {"classes", "size", "channels"} and all(
            isinstance(value, int) and value > 0 for value in written.values()
        )
        return written if is_whole else self.data.shape

    @property
    def is_events(self) -> bool:
        """Was it trained on recordings of events, or on images?"""
        return self.recipe.data in EVENTS

    @cached_property
    def checkpoint(self) -> dict[str, Any] | None:
        """State of the newest whole checkpoint, None if there is none."""
        state = load_checkpoint(self.folder.checkpoints)
        kinds = {"epoch": int, "step": int, "model": dict, "policy": dict}
        if state is not None and not all(isinstance(state.get(key), kind) for key, kind in kinds.items()):
            raise RunError(f"the checkpoint in {self.folder.path} is not that of a training; copy it there again")
        return state

    @property
    def policy_state(self) -> dict[str, Any] | None:
        """The policy's `state_dict()` at the newest checkpoint, None without one that can be read."""
        try:
            return self.checkpoint["policy"] if self.checkpoint else None
        except RunError as error:
            warnings.warn(f"the policy's state is unknown: {error}", stacklevel=2)
            return None

    def unfinished(self, which: Which = "last") -> str | None:
        """How far the run is, and of which moment the weights are; None when it is finished."""
        if self.folder.has_summary:
            return None
        done, total = len(self.folder.metrics()), self.recipe.total_epochs
        told = f"{self.name} is not finished: {done} of {total} epochs are done; the weights are those of"
        if which == "best":
            return f"{told} the best of them"
        if self.folder.weights.is_file() or self.checkpoint is None:
            return f"{told} the last of them"
        step, epoch = self.checkpoint["step"], self.checkpoint["epoch"]
        return f"{told} its newest checkpoint, after " + (
            f"step {step} of epoch {epoch + 1}" if step else f"epoch {epoch}"
        )

    def network(self, which: Which = "last") -> nn.Module:
        """The network in eval mode without a policy: after its last epoch (or step, if unfinished), or at its best."""
        network = self.recipe.model.build(**self.shape)
        path = self.folder.best_weights if which == "best" else self.folder.weights
        if path.is_file():
            load_weights(network, path)
        elif which == "best":
            cure = f", only {self.folder.weights.name}; leave out --weights best to use that"
            yet = " yet; it is written after the first epoch: go on with --resume"
            raise RunError(f"{self.name} has no {path.name}{cure if self.folder.has_summary else yet}")
        else:
            self._load_from_checkpoint(network)
        return network.eval()

    def test_loader(self, images: int | None = None) -> Loader:
        """Batches of all test images, or of so many spread evenly over the set, which may be sorted by class."""
        test = self.data.test
        if images is not None and images < len(test):
            test = test.select(torch.linspace(0, len(test) - 1, images).round().long())
        return Loader(test, test_transform(self.data), min(self.recipe.batch_size, len(test)))

    def _load_from_checkpoint(self, network: nn.Module) -> None:
        if self.checkpoint is None:
            raise RunError(
                f"{self.folder.path} has neither model.safetensors nor a whole checkpoint; "
                f"go on with `sage-snn train ... --out {self.folder.path} --resume`"
            )
        try:
            network.load_state_dict(self.checkpoint["model"])
        except RuntimeError as error:
            raise RunError(f"the checkpoint in {self.folder.path} does not fit its recipe: {error}") from None
