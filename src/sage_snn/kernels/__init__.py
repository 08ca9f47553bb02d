"""Kernels below the mathematics, an operator a file: each has a plain-torch twin that is obviously right.

`path(x)` tells which code runs on a tensor, `status()` why; inside `switched_off()` the twins run.
"""

from .native import status, switched_off
from .path import Path, path

__all__ = ["Path", "path", "status", "switched_off"]
