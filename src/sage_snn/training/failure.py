"""What broke when a loss or a gradient is no longer finite."""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..control import watching
from ..runs.folder import RunError
from ..runs.silence import block_of
from .look import Broken

if TYPE_CHECKING:
    from .loop import Training


class NonFiniteError(RunError):
    """The loss or a gradient became NaN or infinite."""


def require_finite(run: "Training", test_loss: float = 0.0) -> None:
    """Refuse to keep a network that has diverged: after the last step no loss comes that would tell."""
    state = {name: value for name, value in run.network.state_dict().items() if value.is_floating_point()}
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    if not broken and math.isfinite(test_loss):
        return
    told = f"{len(broken)} tensors are not finite, first {broken[0]}" if broken else f"the test loss is {test_loss}"
    raise NonFiniteError(
        f"the network has diverged by step {run.step} of epoch {run.epoch + 1}: {told}\n"
        "nothing of it is kept but what was before; try a lower lr, or precision 32"
    )


def explain(run: "Training", broken: Broken, images: Tensor) -> str:
    """Step, images, and the part of the network where it began; `images` are those of the run's last step."""
    # Gradients run from the output back: the last part in forward order is where they broke.
    part = block_of(broken.gradients[-1]) if broken.gradients else None
    where = f"; gradients broke in {part} ({len(broken.gradients)} tensors)" if part else ""
    return (
        f"the loss is {broken.loss} at step {broken.step.number} of epoch {run.epoch + 1}{where}"
        f"{_beginning(run, broken, images)}\n"
        f"images of the batch: {broken.step.indices}\n"
        "the last checkpoint is kept; try a lower lr, precision 32, or sage_snn.check on this batch"
    )


def _beginning(run: "Training", broken: Broken, images: Tensor) -> str:
    """Where the forward pass broke, if the weights are still those of that step."""
    if broken.step.number <= run.step:
        return f"; seen at step {broken.seen_at}, when the weights had moved on"
    source = _first_non_finite_output(run.network, images)
    return f"; the first non-finite output is that of {source}" if source else ""


def _first_non_finite_output(network: nn.Module, images: Tensor) -> str | None:
    broken: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and not broken and not output.isfinite().all():
            broken.append(name)

    leaves = ((module, partial(look, name)) for name, module in network.named_modules() if not any(module.children()))
    with torch.no_grad(), watching(leaves):
        network(images)
    return broken[0] if broken else None
