"""What kind of machine this is, in words that belong beside every measurement."""

import os
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


def halves_wide_vectors() -> bool:
    """Does this processor take vectors of 512 bits in two halves, as AMD's of family 25 (Zen 4) do?"""
    return is_amds() and _line("cpu family") == "25"


def is_amds() -> bool:
    """Is it a processor of AMD's?"""
    return _line("vendor_id") == "AuthenticAMD"


def vectors_used() -> str:
    """The class of machine that measurements are of: its vectors, or those to which torch, oneDNN and kernels are held.

    All three held to AVX2 make it a machine of that class; one alone is told beside the processor's own vectors.
    """
    onednn, kernels = (os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "SAGE_SNN_MARCH"))
    torchs = torch.backends.cpu.get_cpu_capability() if "ATEN_CPU_CAPABILITY" in os.environ else ""
    held = {"torch": torchs, "oneDNN": onednn, "kernels": kernels}
    if (torchs, onednn.upper(), kernels) == ("AVX2", "AVX2", "x86-64-v3"):
        return f"AVX2 (held to it; the processor has {vectors()})"
    told = ", ".join(f"{name} to {isa}" for name, isa in held.items() if isa)
    return vectors() + (told and f" (held: {told})")


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
