"""Policies decide the slopes of a model during training: Fixed, Scheduled, Learnable, SAGE.

One protocol: `step()` after each optimizer step, `slopes` (blocks,), `parameters()` for the optimizer, `state_dict()`
and `load_state_dict()`, `describe()`, `remove()`; each is its own context manager.
Nothing enters the model's state dict.
"""

from .asgl import ASGL
from .fixed import Fixed
from .learnable import Learnable
from .mpd_agl import MPD_AGL
from .policy import Policy, policy_of
from .sage import SAGE
from .scheduled import Scheduled

__all__ = [
    "ASGL",
    "MPD_AGL",
    "SAGE",
    "Fixed",
    "Learnable",
    "Policy",
    "Scheduled",
    "policy_of",
]
