"""Pictures beside the attention that their tokens receive.

B images, C channels, N tokens.
"""

import io
import math
from typing import Any

from torch import Tensor

from ..screen import shown

_SCALE = "mean over time and queries of scale · q·k"


def attention_figure(
    pictures: Tensor, captions: list[str], maps: dict[str, Tensor], *, title: str = "", one_scale: bool = False
) -> bytes:
    """PNG of pictures (B, C, height, width) in 0..1 beside maps (B, N) by name, tokens row by row.

    Colours mean the same within a column, or with `one_scale` everywhere; the scale is drawn.
    """
    from matplotlib.figure import Figure

    rows, columns = len(pictures), 1 + len(maps)
    figure: Any = Figure(figsize=(1.8 * columns, 1.9 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    largest, drawn = max(float(received.max()) for received in maps.values()), None
    for row, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        axes[row][0].imshow(picture.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray")
        axes[row][0].set_ylabel(shown(caption), fontsize="small", parse_math=False)
    for column, (name, received) in enumerate(maps.items(), start=1):
        drawn = _column(axes[:, column], received, largest if one_scale else float(received.max()))
        axes[0][column].set_title(shown(name.removesuffix(".attention")), fontsize="small", parse_math=False)
        if not one_scale:
            figure.colorbar(drawn, ax=axes[:, column], location="bottom", shrink=0.9).ax.tick_params(labelsize=6)
    if one_scale:
        figure.colorbar(drawn, ax=axes, location="right", shrink=0.8, label=_SCALE)
    figure.suptitle(shown(title) if title else _SCALE, fontsize="medium", parse_math=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _column(axes: Any, received: Tensor, largest: float) -> Any:
    """Maps of all images on one scale; the last one drawn."""
    side, drawn = math.isqrt(received.shape[1]), None
    for axis, tokens in zip(axes, received, strict=True):
        drawn = axis.imshow(tokens.view(side, side).numpy(), cmap="viridis", vmin=0, vmax=largest or 1.0)
        if not tokens.any():  # or the blank panel would look like a fault of the figure
            axis.set_xlabel("no coincident spikes", fontsize="small")
    return drawn
