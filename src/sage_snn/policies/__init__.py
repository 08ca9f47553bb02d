"""Policies decide the slopes of a model during training, a file each; docs/policies.md has a card for each.

One protocol: `step()` after each optimizer step, `slopes` (blocks,), `parameters()` for the optimizer, `state_dict()`
and `load_state_dict()`, `describe()`, `remove()`; each is its own context manager.
Nothing enters the model's state dict, but for the constants of DS_ATGO and LearnableConstants, which are its own.
"""

from .aligned import Aligned
from .asgl import ASGL
from .constants import LearnableConstants
from .dgs import DGS
from .ds_atgo import DS_ATGO
from .fixed import Fixed
from .gain_matched import GainMatched
from .learnable import Learnable
from .mpd_agl import MPD_AGL
from .policy import Policy, policy_of
from .sage import SAGE
from .scheduled import Scheduled

__all__ = [
    "ASGL",
    "DGS",
    "DS_ATGO",
    "MPD_AGL",
    "SAGE",
    "Aligned",
    "Fixed",
    "GainMatched",
    "Learnable",
    "LearnableConstants",
    "Policy",
    "Scheduled",
    "policy_of",
]
