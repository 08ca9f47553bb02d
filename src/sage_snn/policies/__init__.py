"""Policies decide the slopes of a model during training: Fixed, Learnable, SAGE.

One protocol: `step()` after each optimizer step, `slopes` (blocks,), `parameters()` for the optimizer, `state_dict()`
and `load_state_dict()`, `describe()`, `remove()`; each is its own context manager.
Nothing enters the model's state dict.
"""

from .fixed import Fixed
from .learnable import Learnable
from .policy import Policy
from .sage import SAGE

__all__ = ["SAGE", "Fixed", "Learnable", "Policy"]
