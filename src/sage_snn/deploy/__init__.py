"""Trained networks at work: folded for inference, SpikingJelly's nodes made fast, files for other programs."""

from .accelerate import accelerate
from .export import SUFFIXES, ExportError, export, formats
from .fuse import fuse

__all__ = ["SUFFIXES", "ExportError", "accelerate", "export", "formats", "fuse"]
