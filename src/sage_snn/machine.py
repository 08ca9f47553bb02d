"""What kind of machine this is, in words that belong beside every measurement."""

import platform
from pathlib import Path

import torch

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


def devices() -> list[torch.device]:
    """The CPU, and the accelerator if there is one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return [torch.device("cpu"), *([] if accelerator is None else [accelerator])]


def device_name(device: torch.device) -> str:
    """What people call it."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.0f} GB)"


def _line(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
