"""Curves of a run for whoever draws them: TensorBoard, Weights & Biases, MLflow, as the recipe's `loggers` say."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import torch

from ..data.randomness import borrowed
from .trackers import open_tracker

if TYPE_CHECKING:
    from .loop import Training

STEPS_A_POINT = 100  # of the slopes; everything else has a point an epoch
Points = dict[str, float]


class Sink(Protocol):
    """Where points go."""

    def add(self, epoch: int, step: int, points: Points, by_step: dict[int, Points]) -> None:
        """Points of an epoch that ended after so many steps of the run, and of steps within it."""

    def close(self, *, failed: bool) -> None:
        """Nothing more comes; `failed` where the run broke off."""


class TensorBoard:
    """Points by epoch in the folder, points by step in `steps` inside it: one file has one axis."""

    def __init__(self, folder: Path, first_epoch: int, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        _bear_full_disks()  # before its threads begin
        self._epochs = SummaryWriter(str(folder), purge_step=first_epoch)
        self._steps = SummaryWriter(str(folder / "steps"), purge_step=first_step + 1)

    def add(self, epoch: int, step: int, points: Points, by_step: dict[int, Points]) -> None:
        """Write, and let readers see it."""
        for name, value in points.items():
            self._epochs.add_scalar(name, value, epoch)
        for number, told in by_step.items():
            for name, value in told.items():
                self._steps.add_scalar(name, value, number)
        self._epochs.flush()
        self._steps.flush()

    def close(self, *, failed: bool) -> None:
        """Flush to disk."""
        self._epochs.close()
        self._steps.close()


def _bear_full_disks() -> None:
    """Say nothing of TensorBoard's threads that meet a full disk: whoever writes next is told of it by an error.

    For good: a thread may outlive the run that began it.
    """
    usual = threading.excepthook
    if hasattr(usual, "bears_full_disks"):
        return

    def hook(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, OSError) and "AsyncWriter" in type(failure.thread).__name__):
            usual(failure)

    hook.bears_full_disks = True  # type: ignore[attr-defined]
    threading.excepthook = hook


class Curves:
    """All sinks of a run. One that fails is left out from then on: no training ends for its curves."""

    def __init__(self, sinks: dict[str, Sink]) -> None:
        self._sinks = sinks

    def add(self, metrics: dict[str, Any], signals: pd.DataFrame, step: int) -> None:
        """What an epoch gave; it ended after so many steps of the run."""
        points, by_step = epoch_points(metrics, signals), step_points(signals)
        for name, sink in list(self._sinks.items()):
            try:
                sink.add(metrics["epoch"], step, points, by_step)
            except OSError:
                raise  # a full disk is the run's own trouble
            except Exception as error:
                del self._sinks[name]
                warnings.warn(f"{name} gets no more curves of this run: {error}", stacklevel=2)

    def close(self, *, failed: bool) -> None:
        """Nothing more comes."""
        for name, sink in self._sinks.items():
            try:
                sink.close(failed=failed)
            except Exception as error:
                warnings.warn(f"{name} was not closed: {error}", stacklevel=2)


def epoch_points(metrics: dict[str, Any], signals: pd.DataFrame) -> Points:
    """Loss, accuracy, dispersion, readings per head, firing rates; the readings are the last column of the signals."""
    told = {name: value for name, value in metrics.items() if value is not None}
    points = {f"run/{name}": value for name, value in told.items() if name not in ("epoch", "firing_rates")}
    points |= {f"firing/{name}": rate for name, rate in metrics["firing_rates"].items()}
    for block, rows in signals.groupby("block"):
        if bool(rows["dispersion"].notna().any()):
            points[f"dispersion/block {block}"] = rows["dispersion"].mean()
            name = str(signals.columns[-1])
            means = torch.tensor(rows[name].tolist(), dtype=torch.float64).mean(0)
            points |= {f"{name}/block {block} head {h}": float(mean) for h, mean in enumerate(means)}
    return points


def step_points(signals: pd.DataFrame) -> dict[int, Points]:
    """Slopes after every hundredth step of the run, counted from 1, and after the last of the epoch."""
    chosen = signals[((signals["step"] + 1) % STEPS_A_POINT == 0) | (signals["step"] == signals["step"].max())]
    points: dict[int, Points] = {}
    for step, block, slope in zip(chosen["step"], chosen["block"], chosen["slope"], strict=True):
        points.setdefault(int(step) + 1, {})[f"slope/block {block}"] = float(slope)
    return points


@contextmanager
def curves_of(run: "Training") -> Iterator[Curves | None]:
    """The curves of a run on its first process, None on others; a run that was stopped goes on with its own."""
    if not run.fabric.is_global_zero:
        yield None
        return
    sinks: dict[str, Sink] = {}
    with borrowed():  # whatever they draw to name themselves is no part of the run
        for name in dict.fromkeys(run.recipe.loggers):
            if name == "tensorboard":
                first = run.epoch * run.steps_per_epoch
                sinks[name] = TensorBoard(run.folder.path / "tensorboard", run.epoch, first)
            else:
                sinks[name] = open_tracker(name, run.folder, run.recipe)
    curves, failed = Curves(sinks), True
    try:
        yield curves
        failed = False
    finally:
        with borrowed():
            curves.close(failed=failed)
