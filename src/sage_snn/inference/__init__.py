"""Trained networks folded for inference, in float32 or with int8 weights that count spikes."""

from .fold import FoldedLIF, FoldedMap
from .fuse import FuseError, Weights, fuse
from .whole import WholeSynapse

__all__ = ["FoldedLIF", "FoldedMap", "FuseError", "Weights", "WholeSynapse", "fuse"]
