"""Trained networks at work: folded for inference, SpikingJelly's nodes made fast, files for other programs."""

from ..inference import FuseError, fuse
from .accelerate import accelerate
from .export import SUFFIXES, ExportError, export, formats

__all__ = ["SUFFIXES", "ExportError", "FuseError", "accelerate", "export", "formats", "fuse"]
