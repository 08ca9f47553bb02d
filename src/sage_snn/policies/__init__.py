"""Policies decide the slopes of a model during training: Fixed, Scheduled, Learnable, SAGE, Aligned, DGS.

One protocol: `step()` after each optimizer step, `slopes` (blocks,), `parameters()` for the optimizer, `state_dict()`
and `load_state_dict()`, `describe()`, `remove()`; each is its own context manager.
Nothing enters the model's state dict.
"""

from .aligned import Aligned
from .dgs import DGS
from .fixed import Fixed
from .learnable import Learnable
from .policy import Policy, policy_of
from .sage import SAGE
from .scheduled import Scheduled

__all__ = ["DGS", "SAGE", "Aligned", "Fixed", "Learnable", "Policy", "Scheduled", "policy_of"]
