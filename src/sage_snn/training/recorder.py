"""What a policy did, step by step: a parquet part per epoch, and curves for TensorBoard."""

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..policies import Policy
from ..signals import (
    FiringRate,
    GradientGain,
    HeadEntropy,
    HeadGini,
    MembraneDeviation,
    MembraneMean,
    NearThreshold,
    SilentShare,
)

# Column -> what a policy calls it; a policy that reads nothing has slopes only.
_MEASURES = {"slope": "slopes", "dispersion": "dispersion", "zscore": "zscores"}
_COLUMNS = {
    HeadEntropy: "entropy",
    HeadGini: "gini",
    FiringRate: "firing_rate",
    SilentShare: "silent_share",
    MembraneMean: "membrane_mean",
    MembraneDeviation: "membrane_deviation",
    NearThreshold: "near_threshold",
    GradientGain: "gradient_gain",
}


def readings_column(policy: Policy) -> str:
    """What the readings of its signal are called; `entropy`, which is empty then, for a policy that reads nothing."""
    signal = getattr(policy, "signal", None)
    return "entropy" if signal is None else _COLUMNS.get(type(signal), "readings")


class Recorder:
    """Collects a row per step and block during an epoch, and writes them at its end."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.folder, self.policy, self.column = folder, policy, readings_column(policy)
        self._rows: list[tuple[int, dict[str, Tensor], list[Tensor]]] = []

    def record(self, step: int) -> None:
        """Remember the state of the policy after this step; nothing is copied to the host yet."""
        told = {column: getattr(self.policy, name, None) for column, name in _MEASURES.items()}
        values = {column: value for column, value in told.items() if value is not None}
        self._rows.append((step, values, getattr(self.policy, "readings", [])))

    def table(self) -> pd.DataFrame:
        """Columns step, block, slope, dispersion, zscore, and the readings (a list per head) under their own name."""
        rows: list[dict[str, Any]] = []
        for step, values, heads in self._rows:
            columns = {name: value.tolist() for name, value in values.items()}
            for block in range(len(values["slope"])):
                row = {"step": step, "block": block, "dispersion": None, "zscore": None}
                row |= {name: column[block] for name, column in columns.items()}
                rows.append(row | {self.column: heads[block].tolist() if heads else None})
        names = ["step", "block", "dispersion", "zscore", "slope", self.column]
        return pd.DataFrame(rows, columns=names)

    def write(self, epoch: int) -> pd.DataFrame:
        """Write the epoch's part, start the next, and give what was written."""
        table = self.table()
        path = self.folder / f"epoch-{epoch:04d}.parquet"
        temporary = path.with_suffix(".tmp")
        table.to_parquet(temporary)
        temporary.replace(path)
        self._rows.clear()
        return table

    def state_dict(self) -> list[Any]:
        """The rows of an unfinished epoch."""
        return list(self._rows)

    def load_state_dict(self, rows: list[Any]) -> None:
        """Go on with an unfinished epoch."""
        self._rows = list(rows)


class Curves:
    """TensorBoard curves, one point an epoch."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._usual, threading.excepthook = threading.excepthook, self._hook  # before its thread begins
        try:
            self._writer = SummaryWriter(str(folder), purge_step=first_epoch)
        except OSError:
            threading.excepthook = self._usual
            raise

    def add(self, metrics: dict[str, Any], signals: pd.DataFrame) -> None:
        """Loss, accuracy, slopes, dispersion, readings per head, firing rates; the readings are the last column."""
        epoch = metrics["epoch"]
        told = {name: value for name, value in metrics.items() if value is not None}
        points = {f"run/{name}": value for name, value in told.items() if name not in ("epoch", "firing_rates")}
        points |= {f"firing/{name}": rate for name, rate in metrics["firing_rates"].items()}
        for block, rows in signals.groupby("block"):
            points[f"slope/block {block}"] = rows["slope"].iloc[-1]
            if bool(rows["dispersion"].notna().any()):
                points[f"dispersion/block {block}"] = rows["dispersion"].mean()
                name = str(signals.columns[-1])
                means = torch.tensor(rows[name].tolist(), dtype=torch.float64).mean(0)
                points |= {f"{name}/block {block} head {h}": float(mean) for h, mean in enumerate(means)}
        for name, value in points.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """Flush to disk."""
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._usual

    def _hook(self, failure: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread meets a full disk with a traceback; whoever writes next is told of it by an error."""
        if not (isinstance(failure.exc_value, OSError) and "AsyncWriter" in type(failure.thread).__name__):
            self._usual(failure)
