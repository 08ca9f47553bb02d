"""SAGE for spiking transformers: surrogate slopes that follow the disagreement of attention heads.

Names are imported when they are first used, so that the command line answers before torch has loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks import Block, find_blocks
    from .checkup import Report, check
    from .laws import DeadZoneTanh
    from .neurons import LIFNode
    from .policies import SAGE, Fixed, Learnable, Policy
    from .signals import Constant, HeadEntropy, HeadGini, Random
    from .statistics import Statistics

__version__ = "0.1.0"
__all__ = [
    "SAGE",
    "Block",
    "Constant",
    "DeadZoneTanh",
    "Fixed",
    "HeadEntropy",
    "HeadGini",
    "LIFNode",
    "Learnable",
    "Policy",
    "Random",
    "Report",
    "Statistics",
    "check",
    "find_blocks",
]

_HOMES = {
    "blocks": ("Block", "find_blocks"),
    "checkup": ("Report", "check"),
    "laws": ("DeadZoneTanh",),
    "neurons": ("LIFNode",),
    "policies": ("SAGE", "Fixed", "Learnable", "Policy"),
    "signals": ("Constant", "HeadEntropy", "HeadGini", "Random"),
    "statistics": ("Statistics",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
