"""What a person sees while a run goes on: a live bar on a terminal or in a notebook, plain lines elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..notebook import is_live
from ..screen import shown


class Display:
    """Epoch and step progress of one run; silent on other ranks than the first."""

    def __init__(self, title: str, steps: int, *, quiet: bool = False, done: int = 0) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._live = is_live(self.console) and not quiet
        self._title, self._last = title, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        tail = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
        self._progress = Progress(*columns, *tail, console=self.console, disable=not self._live)
        self._task = self._progress.add_task(title, total=steps, completed=done, now="")

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(shown(text), highlight=False, markup=False, soft_wrap=True)

    def step(self) -> None:
        """One training step is done."""
        self._progress.update(self._task, advance=1)

    def show(self, epoch: int, loss: float, slopes: list[float]) -> None:
        """What is known of the last step; epochs count from 0 in files, and from 1 for people."""
        shown = "  slopes " + " ".join(f"{slope:.2f}" for slope in slopes) if slopes else ""
        self._progress.update(self._task, now=f"epoch {epoch + 1}  loss {loss:.3f}{shown}")

    def epoch(self, metrics: dict[str, Any], slopes: list[float], total: int) -> None:
        """One epoch is done."""
        test = f"test {metrics['test_loss']:.4f}  top-1 {metrics['test_top1']:.2f} %"
        if metrics["train_loss"] is None:
            return self.say(f"not trained further  {test}")
        shown = "  slopes " + " ".join(f"{slope:.3f}" for slope in slopes) if slopes else ""
        return self.say(
            f"epoch {metrics['epoch'] + 1}/{total}  loss {metrics['train_loss']:.4f}  {test}{shown}  "
            f"{metrics['images_per_second']:.0f} images/s"
        )

    def silence(self, layer: str | None) -> None:
        """Warn of a network that does not fire from this layer on."""
        if layer is not None:
            self.say(
                f"warning: silent from {layer} on: nothing fires there on the first test batch; "
                "`sage-snn check` on the run tells where gradients vanish"
            )
