"""What has to be compiled for a device before it is claimed: every kernel, in every form it is launched in."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One form of a kernel: types of its arguments in Triton's words, and the values that are compiled into it.

    Pointers and whole numbers are compiled as multiples of 16, which Triton sees at launch, but for types that say
    otherwise ("i32:1"); a tuple of arguments is a type with commas ("fp32,"). `forward` kernels must round as the twin
    does: no fused multiply-add, IEEE division and square root. `wide` ones should read 16 bytes at a time.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    threads: int = 128
    forward: bool = False
    wide: bool = True
