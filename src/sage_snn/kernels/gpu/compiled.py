# pyright: basic
"""The Triton kernels as machine code for devices that need not be here, and what can be read from it."""

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .available import is_interpreting
from .forms import WIDE
from .launch import room
from .variants import Variant

NVIDIA = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (75, 80, 86, 89, 90, 100, 120)}
AMD = {arch: GPUTarget("hip", arch, 64) for arch in ("gfx90a", "gfx942")}
TARGETS = NVIDIA | AMD
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
# With a mask: without one a load is of one value for all threads, such as a slope.
_PTX_LOAD = re.compile(
    r"@%p\d+ ld\.global(?:\.(?!v\d|b\d)[\w:]+)*(?:\.v(\d))?\.b(\d+)|\bcp\.async\.c[ag]\S* .*, (0x\w+),"
)
_AMD_LOAD = re.compile(r"\b(?:global|buffer)_load_(?:dword(?:x(\d))?|[us](byte|short))\b")
_INEXACT = re.compile(r"\b(?:fma|div\.full|div\.approx|sqrt\.approx|rsqrt\.approx|rcp\.approx)\b\S*")
_EXACT = re.compile(r"\b(?:div|sqrt)\.rn\.f32\b")


@dataclass(frozen=True)
class Row:
    """One kernel on one target: registers a thread, bytes spilled and shared, how many loads there are of how many
    bytes, and how often it divides, takes roots or fuses, in PTX."""

    variant: Variant
    target: str
    registers: int
    spilled: int
    shared: int
    loads: Counter[int]
    arithmetic: Counter[str]

    @property
    def wide_share(self) -> float:
        """Of the bytes that the code loads, those that come at least 16 at a time."""
        total = sum(width * count for width, count in self.loads.items())
        return sum(width * count for width, count in self.loads.items() if width >= WIDE) / max(1, total)

    @property
    def problems(self) -> list[str]:
        """What is not as it should be, in words."""
        found = [f"spills {self.spilled} bytes"] if self.spilled else []
        if self.variant.wide and self.wide_share < 0.5:
            found.append(f"{self.wide_share:.0%} of what it loads comes {WIDE} bytes at a time")
        if self.variant.forward and (inexact := sorted(filter(_INEXACT.fullmatch, self.arithmetic))):
            found.append(f"rounds unlike the twin: {', '.join(inexact)}")
        return found


def variants() -> Iterator[Variant]:
    """Those of all files in this folder."""
    if is_interpreting():
        raise RuntimeError("Triton's interpreter is on, which compiles nothing; unset SAGE_SNN_KERNELS")
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f".{found.name}", __package__)
        if module.__name__ != __name__ and hasattr(module, "variants"):
            yield from _different(module.variants())


def _different(found: Iterable[Variant]) -> Iterator[Variant]:
    """Each once: calls that differ in one kernel launch others in the same form."""
    seen = set[Any]()
    for variant in found:
        form = variant.kernel.__name__, *variant.signature.items(), *variant.constants.items(), variant.threads
        if form not in seen:
            seen.add(form)
            yield variant


def compiled(target: str, chosen: Iterable[Variant] | None = None) -> Iterator[Row]:
    """A row for every variant, or for those chosen, as it is compiled for one of `TARGETS`."""
    if target not in TARGETS:
        raise ValueError(f"no target {target!r}; choose from {', '.join(TARGETS)}")
    for variant in variants() if chosen is None else chosen:
        yield _row(variant, target)


def _row(variant: Variant, target: str) -> Row:
    has_scratch = variant.signature.get("scratch", "constexpr") != "constexpr"
    options = room(variant.kernel, has_scratch=has_scratch) if target in NVIDIA else {}
    options |= {"num_warps": variant.threads // TARGETS[target].warp_size, "enable_fp_fusion": False}  # as in launch.py
    made: Any = triton.compile(_source(variant), target=TARGETS[target], options=options)
    read = _from_nvidia if target in NVIDIA else _from_amd
    registers, spilled, loads, arithmetic = read(made.asm)
    return Row(variant, target, registers, spilled, made.metadata.shared, loads, arithmetic)


def _source(variant: Variant) -> ASTSource:
    names: list[str] = variant.kernel.arg_names
    types = {name: variant.signature[name] for name in names if name not in variant.constants}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name, text in types.items() if _is_aligned(text)}
    signature = {name: _type(types[name]) if name in types else "constexpr" for name in names}
    return ASTSource(variant.kernel, signature, variant.constants, hints)


def _is_aligned(text: str) -> bool:
    return text.startswith(("*", "i", "u")) and not text.endswith(":1")


def _type(text: str) -> str | tuple[str, ...]:
    return tuple(text.strip(",").split(",")) if "," in text else text.partition(":")[0]


def _from_nvidia(asm: dict[str, Any]) -> tuple[int, int, Counter[int], Counter[str]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        usage = subprocess.run([_CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK", "LOCAL"))
    loads = Counter(
        int(copied, 16) if copied else int(lanes or 1) * int(bits) // 8
        for lanes, bits, copied in _PTX_LOAD.findall(asm["ptx"])
    )
    arithmetic = Counter(_INEXACT.findall(asm["ptx"]) + _EXACT.findall(asm["ptx"]))
    return registers, stack + local, loads, arithmetic


def _from_amd(asm: dict[str, Any]) -> tuple[int, int, Counter[int], Counter[str]]:
    text: str = asm["amdgcn"]
    # Scalar registers that do not suffice go to lanes of vector ones, not to memory.
    registers, spilled, memory = (
        sum(map(int, re.findall(rf"\s\.{name}:\s*(\d+)", text)))
        for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
    )
    small = {"byte": 1, "short": 2}
    loads = Counter(small[part] if part else 4 * int(lanes or 1) for lanes, part in _AMD_LOAD.findall(text))
    return registers, max(4 * spilled, memory), loads, Counter()
