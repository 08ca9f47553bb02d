"""Dots with intervals, a line per name: differences to something that stands at zero."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from .panels import Grid
from .style import COLOURS, INK, for_matplotlib, for_plotly

LINE = 30  # pixels of a line on the page
ASIDE = 0.28  # of a line: seeds lie below their interval
TOLD, UNTOLD = COLOURS[0], "#8a8f96"


@dataclass(frozen=True)
class Dot:
    """A line of a panel: how far down, its mean and interval (NaN if there is none), its seeds, and is it told?"""

    y: int
    mean: float
    low: float
    high: float
    values: np.ndarray
    seeds: list[str]
    is_told: bool

    @property
    def colour(self) -> str:
        """Of the dot and its whisker."""
        return TOLD if self.is_told else UNTOLD


@dataclass(frozen=True)
class Dots:
    """A line per name in the given order, a panel per `column`; reads value, seed, mean, low, high and is_apart."""

    name: str
    column: str
    x_title: str
    order: tuple[str, ...]

    def width(self, data: pd.DataFrame) -> int:
        """Pixels below which the panels would not be readable."""
        return self._grid(data).width + 6 * max(len(name) for name in self.order)

    def plotly(self, data: pd.DataFrame) -> Any:
        """A plotly figure of the panels."""
        grid = self._grid(data)
        figure = grid.plotly(shared_y=True)
        for panel in grid.panels(data):
            dots = list(self._dots(panel.data))
            figure.add_trace(_seeds(dots), **panel.at)
            for is_told in (False, True):
                if some := [dot for dot in dots if dot.is_told is is_told]:
                    figure.add_trace(self._means(some), **panel.at)
            # After the traces: plotly draws no line in a panel that is still empty.
            figure.add_vline(0, line={"color": "rgba(128,128,128,0.9)", "width": 1.2}, layer="below", **panel.at)
            if panel.is_lowest:
                figure.update_xaxes(title_text=for_plotly(self.x_title), showticklabels=True, **panel.at)
        names = {"tickvals": list(range(len(self.order))), "ticktext": [for_plotly(name) for name in self.order]}
        figure.update_yaxes(range=[len(self.order) - 0.4, -0.6], zeroline=False, showgrid=False, **names)
        figure.update_xaxes(range=self._range(data), zeroline=False)
        height = 120 + grid.shape[0] * max(120, LINE * len(self.order))
        figure.update_layout(height=height, showlegend=False)
        return figure

    def matplotlib(self, data: pd.DataFrame, canvas: Canvas) -> None:
        """Draw the panels on a canvas."""
        grid = self._grid(data)
        axes = grid.matplotlib(canvas, shared_y=True)
        rows, columns = grid.shape
        canvas.set_size_inches(1.4 + 2.3 * columns, rows * (0.9 + 0.26 * len(self.order)))
        for panel in grid.panels(data):
            axis = axes[panel.row][panel.column]
            axis.axvline(0, color=INK, linewidth=0.8)
            for dot in self._dots(panel.data):
                self._draw(axis, dot)
            axis.set_yticks(range(len(self.order)), [for_matplotlib(name) for name in self.order])
            axis.set(xlim=self._range(data), ylim=(len(self.order) - 0.4, -0.6))
            axis.grid(visible=False, axis="y")
            if panel.is_lowest:
                axis.tick_params(labelbottom=True)
        canvas.supxlabel(for_matplotlib(self.x_title), fontsize=9)

    def _means(self, dots: list[Dot]) -> dict[str, Any]:
        ends = np.array([[dot.high - dot.mean, dot.mean - dot.low] for dot in dots])
        told, colour = dots[0].is_told, dots[0].colour
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers",
            "x": [dot.mean for dot in dots],
            "y": [dot.y for dot in dots],
            "text": [for_plotly(f"{self.order[dot.y]}: {_words(dot)}") for dot in dots],
            "marker": {
                "size": 11,
                "color": colour,
                "symbol": "circle" if told else "circle-open",
                "line": {"width": 2, "color": colour},
            },
            "hovertemplate": "%{text}<extra></extra>",
        }
        if not np.isnan(ends).all():
            trace["error_x"] = {
                "array": ends[:, 0],
                "arrayminus": ends[:, 1],
                "thickness": 2,
                "width": 4,
                "color": colour,
            }
        return trace

    def _draw(self, axis: Any, dot: Dot) -> None:
        rings = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.5, "alpha": 0.6}
        axis.plot(dot.values, np.full(len(dot.values), dot.y + ASIDE), "o", markersize=2.6, zorder=2, **rings)
        if not np.isnan(dot.low):
            ends = [[dot.mean - dot.low], [dot.high - dot.mean]]
            axis.errorbar([dot.mean], [dot.y], xerr=ends, color=dot.colour, capsize=2.5, linewidth=1.4, zorder=3)
        face = dot.colour if dot.is_told else "white"
        axis.plot([dot.mean], [dot.y], "o", color=dot.colour, markerfacecolor=face, markersize=5.5, zorder=4)

    def _dots(self, data: Any) -> Iterator[Dot]:
        for y, name in enumerate(self.order):
            rows = data[data[self.name] == name]
            if len(rows):
                mean, low, high = (float(rows[key].iloc[0]) for key in ("mean", "low", "high"))
                values, seeds = rows["value"].to_numpy(float), [str(seed) for seed in rows["seed"]]
                yield Dot(y, mean, low, high, values, seeds, bool(rows["is_apart"].iloc[0]))

    def _range(self, data: pd.DataFrame) -> tuple[float, float]:
        """Limits that hold every seed, every interval and zero."""
        numbers = data[["value", "low", "high"]].to_numpy(float)
        numbers = numbers[np.isfinite(numbers)]
        low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
        room = 0.06 * ((high - low) or 1.0)
        return low - room, high + room

    def _grid(self, data: pd.DataFrame) -> Grid:
        return Grid.of(data, None, self.column)


def _seeds(dots: list[Dot]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": np.concatenate([dot.values for dot in dots]),
        "y": np.concatenate([np.full(len(dot.values), dot.y + ASIDE) for dot in dots]),
        "text": [for_plotly(seed) for dot in dots for seed in dot.seeds],
        "marker": {"symbol": "circle-open", "size": 5, "color": INK, "opacity": 0.55},
        "meta": "ink",
        "hovertemplate": "seed %{text}: %{x:+.2f}<extra></extra>",
    }


def _words(dot: Dot) -> str:
    ends = "" if np.isnan(dot.low) else f" [{dot.low:+.2f}, {dot.high:+.2f}]"
    return f"{dot.mean:+.2f}{ends}"
