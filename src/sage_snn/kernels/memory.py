"""Freed memory stays with the process, or the C library would fetch it anew, page by page, for every tensor."""

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3)
_LARGEST = 32 * 2**20  # that glibc takes for the second


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed; False where it is not glibc, which has other ways."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt if sys.platform == "linux" else None
        return mallopt is not None and all((mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_TRIM_THRESHOLD, 2**31 - 1)))
    return False
