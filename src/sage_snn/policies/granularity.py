"""How fine the slopes of SAGE are: which grain a name stands for, and what it needs."""

from collections.abc import Sequence
from typing import Literal

from ..control import Group
from ..signals import Signal
from .finer import PerChannel, PerHead
from .grain import PerGroup
from .token import PerToken

Per = Literal["group", "head", "channel", "token"]
GRAINS: dict[str, type[PerGroup]] = {"group": PerGroup, "head": PerHead, "channel": PerChannel, "token": PerToken}


def require_grain(
    per: str, signal: Signal, groups: Sequence[Group], *, source: str, neurons: str, every: int, same_step: bool
) -> None:
    """Refuse what a grain cannot do, and say what can."""
    if per not in GRAINS:
        raise ValueError(f"per must be 'group', 'head', 'channel' or 'token', not {per!r}")
    if per == "group":
        return
    if neurons == "all":
        raise ValueError(f"nodes outside the blocks have no {per}s of them; pass neurons='block', or per='group'")
    if per == "channel":
        _require_channels(signal, source)
    elif source != "attention":
        raise ValueError(f"per={per!r} follows attention; with source={source!r} pass per='group' or 'channel'")
    if per == "token":
        _require_tokens(signal, groups, every, same_step)


def _require_channels(signal: Signal, source: str) -> None:
    if source != "firing":
        raise ValueError(f"source={source!r} has no value per channel; pass source='firing' with per='channel'")
    if not hasattr(signal, "each_channel"):
        raise ValueError(
            f"{signal} has no value per channel; use a signal with each_channel(spikes, axis) -> (C,), such as "
            "FiringRate()"
        )


def _require_tokens(signal: Signal, groups: Sequence[Group], every: int, same_step: bool) -> None:
    if not hasattr(signal, "each_row"):
        raise ValueError(
            f"{signal} has no value per token; use a signal with each_row(q, k, scale) -> (T, B, H, N), such as "
            "HeadEntropy()"
        )
    if getattr(signal, "over", "keys") != "keys" or getattr(signal, "images", None) is not None:
        raise ValueError(f"per='token' needs every row of every image: leave over= and images= out of {signal}")
    if every != 1:
        raise ValueError("tokens are read in every pass, or they have no slopes; pass every=1 with per='token'")
    if same_step:
        raise ValueError("per='token' acts in the same backward pass anyhow; leave same_step= out")
    for group in groups:
        if len(group.sources) != 1 or group.sources[0].read is not None or not hasattr(group, "layout"):
            raise ValueError(
                f"block {group.name} is not read while the pass runs; pass Block(query=..., key=...) with per='token'"
            )
