"""A policy as a Lightning callback."""

import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
from torch import nn

from ..policies import Policy


class PolicyCallback(L.Callback):
    """Attaches `build(model)` for the fit, steps it after each optimizer step, saves and restores its state.

    `PolicyCallback(lambda model: SAGE(model, warmup_steps=100))`. A Learnable policy's parameters are at
    `callback.policy.parameters()` when `configure_optimizers` runs. `part` names the attribute that holds the network.
    """

    def __init__(self, build: Callable[[nn.Module], Policy], part: str | None = None) -> None:
        self.build, self.part = build, part
        self.policy: Policy | None = None
        self._steps_seen = 0
        self._last: dict[str, Any] = {}  # state of the policy of the last fit, for a checkpoint saved after it
        self._is_restored = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach."""
        if stage == "fit" and self.policy is None:
            # Lightning moves the module only after this hook, and a policy lives where its model does.
            pl_module.to(trainer.strategy.root_device)
            self.policy = self.build(getattr(pl_module, self.part) if self.part else pl_module)
            self._last, self._is_restored = {}, False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A resumed fit starts from a later step."""
        self._steps_seen = trainer.global_step
        if trainer.global_step and not self._is_restored:
            warnings.warn(
                f"training goes on at step {trainer.global_step}, but no state of the policy came with it: "
                "it starts anew, warm-up included; resume from a checkpoint that was saved with this callback",
                stacklevel=2,
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One policy step per optimizer step: micro-batches of an accumulated gradient are averaged."""
        if self.policy is not None and trainer.global_step > self._steps_seen:
            self._steps_seen = trainer.global_step
            self.policy.step()
            slopes = {f"slope/{i}": slope for i, slope in enumerate(self.policy.slopes)}
            pl_module.log_dict(slopes, batch_size=1)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the model back."""
        if stage == "fit":
            self._detach()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give the model back after a failure too."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """The policy's state travels in Lightning's checkpoint."""
        return self._last if self.policy is None else self.policy.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the policy when a fit is resumed."""
        if self.policy is not None and state_dict:
            self.policy.load_state_dict(state_dict)
            self._is_restored = True

    def _detach(self) -> None:
        if self.policy is not None:
            self._last = self.policy.state_dict()
            self.policy.remove()
            self.policy = None
