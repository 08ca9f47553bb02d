"""Grouped bars, or points, with intervals and a dot per seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from .panels import Grid
from .style import INK, Style, for_matplotlib, for_plotly, styles

FILLED = 0.8  # of the room of a group


@dataclass(frozen=True)
class Mark:
    """One bar: where it stands, how high, its interval (NaN if there is none), and the values of its seeds."""

    x: float
    width: float
    mean: float
    low: float
    high: float
    values: np.ndarray
    seeds: list[str]


@dataclass(frozen=True)
class Bars:
    """A bar per `group` and `series`, a panel per `column`; reads `value`, `seed`, `mean`, `low` and `high`."""

    group: str
    series: str
    x_title: str
    y_title: str
    column: str | None = None
    from_zero: bool = True
    as_points: bool = False  # differences have no length to fill, only a place on the axis

    def width(self, data: pd.DataFrame) -> int:
        """Pixels below which the bars would not be readable."""
        grid = Grid.of(data, None, self.column)
        bars = len(data[self.group].unique()) * len(data[self.series].unique())
        return max(grid.width, 80 + 22 * bars * grid.shape[1])

    def plotly(self, data: pd.DataFrame) -> Any:
        """A plotly figure of the panels."""
        grid, looks = Grid.of(data, None, self.column), self._looks(data)
        figure = grid.plotly(shared_y=False)
        named: set[str] = set()
        for panel in grid.panels(data):
            groups = self._groups(panel.data)
            for name, marks in self._marks(panel.data):
                for trace in self._traces(name, marks, looks[name], show=name not in named):
                    figure.add_trace(trace, **panel.at)
                named.add(name)
            ticks = {"tickvals": list(range(len(groups))), "ticktext": [for_plotly(group) for group in groups]}
            figure.update_xaxes(title_text=for_plotly(self.x_title), showticklabels=True, **ticks, **panel.at)
            figure.update_xaxes(range=[-0.55, len(groups) - 0.45], showgrid=False, zeroline=False, **panel.at)
            figure.update_yaxes(range=self._range(panel.data), **panel.at)
            if self.as_points:
                figure.add_hline(0, line={"color": "rgba(128,128,128,0.9)", "width": 1}, **panel.at)
            if panel.column == 0:
                figure.update_yaxes(title_text=for_plotly(self.y_title), **panel.at)
        return figure

    def matplotlib(self, data: pd.DataFrame, canvas: Canvas) -> None:
        """Draw the panels on a canvas."""
        grid, looks = Grid.of(data, None, self.column), self._looks(data)
        axes = grid.matplotlib(canvas, shared_y=False)
        handles: dict[str, Any] = {}
        for panel in grid.panels(data):
            axis = axes[panel.row][panel.column]
            groups = self._groups(panel.data)
            for name, marks in self._marks(panel.data):
                handles.setdefault(name, self._draw(axis, marks, looks[name]))
            axis.set_xticks(range(len(groups)), [for_matplotlib(group) for group in groups])
            axis.tick_params(labelbottom=True)
            axis.set(xlim=(-0.55, len(groups) - 0.45), ylim=self._range(panel.data))
            axis.set_xlabel(for_matplotlib(self.x_title))
            axis.grid(visible=False, axis="x")
            if self.as_points:
                axis.axhline(0, color=INK, linewidth=0.8)
            if panel.column == 0:
                axis.set_ylabel(for_matplotlib(self.y_title))
        grid.legend(canvas, handles)

    def _marks(self, data: pd.DataFrame) -> Iterator[tuple[str, list[Mark]]]:
        """Name and bars of each series of a panel; a group's bars stand together, however few they are."""
        series = data[self.series].astype(str)
        names = list(series.unique())
        width = FILLED / max(1, len(names))
        marks: dict[str, list[Mark]] = {name: [] for name in names}
        for middle, group in enumerate(self._groups(data)):
            here = [name for name in names if ((series == name) & (data[self.group] == group)).any()]
            for rank, name in enumerate(here):
                rows = data[(series == name) & (data[self.group] == group)]
                marks[name].append(self._mark(rows, middle + (rank - (len(here) - 1) / 2) * width, 0.9 * width))
        yield from marks.items()

    def _mark(self, rows: Any, x: float, width: float) -> Mark:
        first, seeds = rows.iloc[0], [str(seed) for seed in rows["seed"]]
        return Mark(x, width, first["mean"], first["low"], first["high"], rows["value"].to_numpy(float), seeds)

    def _traces(self, name: str, marks: list[Mark], look: Style, *, show: bool) -> list[dict[str, Any]]:
        shared = {"legendgroup": name, "name": for_plotly(name)}
        ends = np.array([[mark.high - mark.mean, mark.mean - mark.low] for mark in marks])
        bars = shared | {
            "x": [mark.x for mark in marks],
            "y": [mark.mean for mark in marks],
            "showlegend": show,
            "hovertemplate": "mean %{y:.4g}<extra>%{fullData.name}</extra>",
        }
        if not np.isnan(ends).all():
            bars["error_y"] = {"array": ends[:, 0], "arrayminus": ends[:, 1], "thickness": 1.6, "width": 4}
        if self.as_points:
            mark = {"symbol": look.marker[0], "size": 11, "color": look.colour}
            bars |= {"type": "scatter", "mode": "markers", "marker": mark}
        else:
            fill = {"shape": look.hatch[0], "fillmode": "overlay", "size": 6, "solidity": 0.3}
            fill["fgcolor"] = look.colour
            mark = {"color": look.tint(0.55), "line": {"color": look.colour, "width": 1.5}, "pattern": fill}
            bars |= {"type": "bar", "width": [m.width for m in marks], "marker": mark}
        return [bars, shared | self._dots(marks, look)]

    def _dots(self, marks: list[Mark], look: Style) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "markers",
            "x": np.concatenate([_spread(mark) for mark in marks]),
            "y": np.concatenate([mark.values for mark in marks]),
            "text": [for_plotly(seed) for mark in marks for seed in mark.seeds],
            "marker": {"symbol": "circle-open", "size": 5, "color": look.colour if self.as_points else INK},
            "meta": "own" if self.as_points else "ink",
            "showlegend": False,
            "hovertemplate": "seed %{text}: %{y:.4g}<extra>%{fullData.name}</extra>",
        }

    def _draw(self, axis: Any, marks: list[Mark], look: Style) -> Any:
        x, means = [mark.x for mark in marks], [mark.mean for mark in marks]
        if self.as_points:
            (handle,) = axis.plot(x, means, look.marker[1], color=look.colour, markersize=7, zorder=3)
        else:
            widths = [mark.width for mark in marks]
            handle = axis.bar(
                x, means, widths, facecolor=(look.colour, 0.55), edgecolor=look.colour, hatch=look.hatch[1]
            )
        for mark in marks:
            if not np.isnan(mark.low):
                ends = [[mark.mean - mark.low], [mark.high - mark.mean]]
                axis.errorbar([mark.x], [mark.mean], ends, color=INK, capsize=2.5, linewidth=1, zorder=4)
            dots = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.7}
            axis.plot(_spread(mark), mark.values, "o", markersize=3, zorder=5, **dots)
        return handle

    def _range(self, data: pd.DataFrame) -> tuple[float, float]:
        """Limits that hold every dot and interval, and zero where bars start there."""
        numbers = data[["value", "mean", "low", "high"]].to_numpy(float)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return 0.0, 1.0
        low, high = float(numbers.min()), float(numbers.max())
        room = 0.08 * ((high - min(low, 0.0) if self.from_zero else high - low) or abs(high) or 1.0)
        if self.as_points:
            return min(low, 0.0) - room, max(high, 0.0) + room
        return (0.0 if self.from_zero else max(0.0, low - 3 * room)), high + room

    def _looks(self, data: pd.DataFrame) -> dict[str, Style]:
        return styles([str(name) for name in data[self.series].unique()])

    def _groups(self, data: pd.DataFrame) -> list[Any]:
        return list(data[self.group].unique())


def _spread(mark: Mark) -> np.ndarray:
    """Places of the seeds' dots, side by side so that equal values stay visible."""
    count = len(mark.values)
    return mark.x + mark.width * 0.5 * (np.arange(count) - (count - 1) / 2) / max(1, count)
