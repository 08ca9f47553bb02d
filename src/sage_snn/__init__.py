"""SAGE for spiking transformers: surrogate slopes that follow the disagreement of attention heads.

Names are imported when they are first used, so that the command line answers before torch has loaded.
"""

import os
import sys
from typing import TYPE_CHECKING

from .lazy import lazily

# Triton reads this when it is imported, which SpikingJelly does; too late for that, `is_interpreting` says so.
if os.environ.get("SAGE_SNN_KERNELS", "").lower() == "interpret" and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"

if TYPE_CHECKING:
    from .checkup import Report, check
    from .control import Block, Group, find_blocks, find_layers
    from .laws import DeadZoneTanh
    from .neurons import LIFNode
    from .policies import (
        ASGL,
        DGS,
        DS_ATGO,
        MPD_AGL,
        SAGE,
        Aligned,
        Fixed,
        GainMatched,
        Learnable,
        LearnableConstants,
        Policy,
        Scheduled,
        policy_of,
    )
    from .runs import load
    from .signals import (
        Constant,
        FiringRate,
        GradientGain,
        HeadEntropy,
        HeadGini,
        MembraneDeviation,
        MembraneMean,
        NearThreshold,
        Random,
        SilentShare,
    )
    from .statistics import Statistics

__version__ = "0.1.0"
__all__ = [
    "ASGL",
    "DGS",
    "DS_ATGO",
    "MPD_AGL",
    "SAGE",
    "Aligned",
    "Block",
    "Constant",
    "DeadZoneTanh",
    "FiringRate",
    "Fixed",
    "GainMatched",
    "GradientGain",
    "Group",
    "HeadEntropy",
    "HeadGini",
    "LIFNode",
    "Learnable",
    "LearnableConstants",
    "MembraneDeviation",
    "MembraneMean",
    "NearThreshold",
    "Policy",
    "Random",
    "Report",
    "Scheduled",
    "SilentShare",
    "Statistics",
    "check",
    "find_blocks",
    "find_layers",
    "load",
    "policy_of",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".checkup": ("Report", "check"),
        ".control": ("Block", "Group", "find_blocks", "find_layers"),
        ".laws": ("DeadZoneTanh",),
        ".neurons": ("LIFNode",),
        ".policies": (
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
        ),
        ".runs": ("load",),
        ".signals": (
            "Constant",
            "FiringRate",
            "GradientGain",
            "HeadEntropy",
            "HeadGini",
            "MembraneDeviation",
            "MembraneMean",
            "NearThreshold",
            "Random",
            "SilentShare",
        ),
        ".statistics": ("Statistics",),
    },
)
