"""What all parts of a recipe that name a policy share."""

from typing import ClassVar

from ..parts import Kind

BASE = 4.0  # the slope that everybody uses


class PolicyPart(Kind):
    """A way to set the slopes during training."""

    needs_loss: ClassVar[bool] = False  # does `build` take `loss=`, a function of (images, targets)?
    keeps_steps: ClassVar[bool] = False  # is the trained network one for its own T only?
