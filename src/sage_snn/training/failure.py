"""What broke when a loss or a gradient is no longer finite."""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..compat import norms, scales_gradients
from ..control import watching
from ..runs.folder import RunError
from ..runs.silence import block_of

if TYPE_CHECKING:
    from .loop import Training


class NonFiniteError(RunError):
    """The loss or a gradient became NaN or infinite."""


def has_finite_gradients(run: "Training") -> bool:
    """True too when a gradient scaler is at work, which expects and handles infinities itself."""
    if scales_gradients(run.fabric):
        return True
    gradients = [p.grad for p in run.network.parameters() if p.grad is not None]
    return bool(torch.stack(norms(gradients)).sum().isfinite())


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


def explain(run: "Training", images: Tensor, indices: list[int], loss: float) -> str:
    """Step, images, and the part of the network where it began."""
    broken = [name for name, p in run.network.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    # Gradients run from the output back: the last part in forward order is where they broke.
    part = block_of(broken[-1]) if broken else None
    source = _first_non_finite_output(run.network, images)
    begun = f"; the first non-finite output is that of {source}" if source else ""
    where = f"; gradients broke in {part} ({len(broken)} tensors)" if part else ""
    return (
        f"the loss is {loss} at step {run.step + 1} of epoch {run.epoch + 1}{where}{begun}\n"
        f"images of the batch: {indices}\n"
        "the last checkpoint is kept; try a lower lr, precision 32, or sage_snn.check on this batch"
    )


def _first_non_finite_output(network: nn.Module, images: Tensor) -> str | None:
    broken: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and not broken and not output.isfinite().all():
            broken.append(name)

    leaves = ((module, partial(look, name)) for name, module in network.named_modules() if not any(module.children()))
    with torch.no_grad(), watching(leaves):
        network(images)
    return broken[0] if broken else None
