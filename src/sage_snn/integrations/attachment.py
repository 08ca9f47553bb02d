"""What the callbacks of all trainers share: a policy for the time of one training."""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..policies import Policy


class Attachment:
    """Holds the policy of one training: `build(model)`, or one that is attached already."""

    def __init__(self, build: Callable[[nn.Module], Policy] | Policy) -> None:
        self.build = build
        self.policy: Policy | None = None
        self._last: dict[str, Any] = {}  # state of the policy of the last training, for a checkpoint saved after it
        self._is_restored = False

    def _attach(self, model: nn.Module) -> None:
        self._last, self._is_restored = {}, False
        self.policy = self.build if isinstance(self.build, Policy) else self.build(model)

    def _detach(self) -> None:
        if self.policy is not None:
            self._last = self.policy.state_dict()
            self.policy.remove()
            self.policy = None

    def _restore(self, state: dict[str, Any]) -> None:
        if self.policy is not None and state:
            self.policy.load_state_dict(state)
            self._is_restored = True

    def _state(self) -> dict[str, Any]:
        return self._last if self.policy is None else self.policy.state_dict()

    def _slopes(self) -> dict[str, Tensor]:
        """What is logged: `slope/0`, `slope/1` and so on, one per block."""
        return {} if self.policy is None else {f"slope/{i}": slope for i, slope in enumerate(self.policy.slopes)}

    def _warn_if_new(self, step: int, cure: str) -> None:
        """A policy that starts anew in the middle of a training is hardly meant."""
        if step and not self._is_restored:
            warnings.warn(
                f"training goes on at step {step}, but no state of the policy came with it: "
                f"it starts anew, warm-up included; {cure}",
                stacklevel=3,
            )
