"""SAGE for spiking transformers: surrogate slopes that follow the disagreement of attention heads."""

from .blocks import Block, find_blocks
from .check import Report, check
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
