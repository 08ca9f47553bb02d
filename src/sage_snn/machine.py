"""What kind of machine this is, in words that belong beside every measurement."""

import platform
from pathlib import Path

# Flags of /proc/cpuinfo and what people call them, the best first.
_VECTORS = {
    "avx512_vnni": "AVX-512 with VNNI",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX2 with VNNI",
    "avx2": "AVX2",
    "sve": "SVE",
    "asimd": "NEON",
}


def processor() -> str:
    """Its name."""
    return _line("model name") or platform.processor() or platform.machine()


def vectors() -> str:
    """The widest vector instructions that it has, or "vectors unknown"."""
    flags = set((_line("flags") or _line("Features")).split())
    return next((words for flag, words in _VECTORS.items() if flag in flags), "vectors unknown")


def _line(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
