"""A policy as a Lightning callback."""

from collections.abc import Callable
from typing import Any

import lightning as L
from torch import nn

from ..policies import Policy
from .attachment import Attachment


class PolicyCallback(Attachment, L.Callback):
    """Attaches `build(model)` for the fit, steps it after each optimizer step, saves and restores its state.

    `PolicyCallback(lambda model: SAGE(model, warmup_steps=100))`; a policy that is attached already is taken too.
    A Learnable policy's parameters are at `callback.policy.parameters()` when `configure_optimizers` runs. `part`
    names the attribute that holds the network.

    Args:
        build: a policy, or a function of the model that gives one.
        part: name of the attribute that holds the network.
    """

    def __init__(self, build: Callable[[nn.Module], Policy] | Policy, part: str | None = None) -> None:
        super().__init__(build)
        self.part = part
        self._steps_seen = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach."""
        if stage == "fit" and self.policy is None:
            # Lightning moves the module only after this hook, and a policy lives where its model does.
            pl_module.to(trainer.strategy.root_device)
            self._attach(getattr(pl_module, self.part) if self.part else pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A resumed fit starts from a later step."""
        self._steps_seen = trainer.global_step
        self._warn_if_new(trainer.global_step, "resume from a checkpoint that was saved with this callback")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One policy step per optimizer step: micro-batches of an accumulated gradient are averaged."""
        if self.policy is not None and trainer.global_step > self._steps_seen:
            self._steps_seen = trainer.global_step
            self.policy.step_after(batch)
            pl_module.log_dict(self._slopes(), batch_size=1)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the model back."""
        if stage == "fit":
            self._detach()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give the model back after a failure too."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """The policy's state travels in Lightning's checkpoint."""
        return self._state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the policy when a fit is resumed."""
        self._restore(state_dict)
