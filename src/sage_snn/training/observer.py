"""Attention statistics over training at several temperatures, under any policy: a parquet part per epoch."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..control import Tap, find_blocks
from ..policies.policy import ranks
from ..signals import HeadStatistics


class Observer:
    """Reads entropy and Gini impurity per head in every training step; it changes nothing."""

    def __init__(self, folder: Path, network: nn.Module, temperatures: tuple[float, ...], device: torch.device) -> None:
        self.folder, self.temperatures, self.device = folder, temperatures, device
        signal, blocks = HeadStatistics(temperatures), find_blocks(network) if temperatures else []
        sources, times = [source for block in blocks for source in block.sources], 2 * len(temperatures)
        self._taps = [Tap(source, signal, device, times=times) for source in sources]
        self._rows: list[tuple[int, list[Tensor]]] = []

    def record(self, step: int) -> None:
        """Remember the sums of this step."""
        if self._taps:
            self._rows.append((step, [tap.sums.clone() for tap in self._taps]))
            for tap in self._taps:
                tap.clear()

    def write(self, epoch: int, *, is_writer: bool) -> None:
        """Write the epoch's part; a collective call, since every rank has read its own images."""
        if not self._rows:
            return
        for block in range(len(self._taps)):
            sums = torch.stack([row[block] for _, row in self._rows])
            if ranks() > 1:
                dist.all_reduce(sums)
            for (_, row), summed in zip(self._rows, sums, strict=True):
                row[block] = summed
        if is_writer:
            self.folder.mkdir(exist_ok=True)
            path = self.folder / f"epoch-{epoch:04d}.parquet"
            temporary = path.with_suffix(".tmp")
            self.table().to_parquet(temporary)
            temporary.replace(path)
        self._rows = []

    def table(self) -> pd.DataFrame:
        """Columns step, block, temperature, entropy and gini (a list per head)."""
        rows: list[dict[str, Any]] = []
        for step, blocks in self._rows:
            for block, sums in enumerate(blocks):
                means = (sums[:-1] / sums[-1]).reshape(2, len(self.temperatures), -1).tolist()
                for temperature, entropy, gini in zip(self.temperatures, *means, strict=True):
                    rows.append(
                        {"step": step, "block": block, "temperature": temperature, "entropy": entropy, "gini": gini}
                    )
        return pd.DataFrame(rows, columns=["step", "block", "temperature", "entropy", "gini"])

    def remove(self) -> None:
        """Take the hooks off."""
        for tap in self._taps:
            tap.remove()

    def state_dict(self) -> list[Any]:
        """The rows of an unfinished epoch, in main memory: other ranks have other devices."""
        return [(step, [sums.cpu() for sums in row]) for step, row in self._rows]

    def load_state_dict(self, rows: list[Any]) -> None:
        """Go on with an unfinished epoch."""
        self._rows = [(step, [sums.to(self.device) for sums in row]) for step, row in rows]
