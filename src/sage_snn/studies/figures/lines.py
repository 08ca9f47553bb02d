"""Curves with bands in a grid of panels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, MultipleLocator

from .panels import Grid, Panel, powers_of_two, whole_ticks
from .style import INK, Style, for_matplotlib, for_plotly, styles

AT_ZERO = (-0.05, 1.0)  # limits of panels in which nothing leaves zero: renderers would show rounding
FEW = 40  # points; more markers than that hide the curve


@dataclass(frozen=True)
class Lines:
    """A curve per `series` and a panel per (`row`, `column`); columns `low` and `high` of the data make the band."""

    x: str
    y: str
    series: str
    x_title: str
    y_title: str
    column: str | None = None
    row: str | None = None
    row_titles: dict[str, str] = field(default_factory=dict)
    references: dict[str, float] = field(default_factory=dict)  # dotted line per row (or "" for all)
    share_y: bool = True
    log_y: bool = False
    log_x: bool = False  # powers of two
    levels: str | None = None  # column of a level per series, a dotted line in its colour
    whiskers: bool = False  # instead of a band, where nothing is known between the points

    def width(self, data: pd.DataFrame) -> int:
        """Pixels below which the panels would not be readable."""
        return self._grid(data).width

    def plotly(self, data: pd.DataFrame) -> Any:
        """A plotly figure of the panels."""
        grid = self._grid(data)
        figure = grid.plotly(shared_y=self.share_y)
        looks, at_zero = styles([str(name) for name in data[self.series].unique()]), self._rows_at_zero(grid, data)
        named: set[str] = set()
        for panel in grid.panels(data):
            for name, rows in panel.data.groupby(self.series, sort=False):
                for trace in self._traces(str(name), rows, looks[str(name)], show=str(name) not in named):
                    figure.add_trace(trace, **panel.at)
                named.add(str(name))
            for level, colour in self._levels(panel, looks, "rgba(128,128,128,0.8)"):
                line = {"color": colour, "width": 1, "dash": "dot"}
                across = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": level, "y1": level}
                figure.add_shape(across, line=line, **panel.at)  # as add_hline does, six times as fast
            if panel.row in at_zero:
                figure.update_yaxes(range=AT_ZERO, **panel.at)
            if panel.column == 0:
                figure.update_yaxes(title_text=for_plotly(self._y_title(panel.row_name)), **panel.at)
            if panel.is_lowest:
                figure.update_xaxes(title_text=for_plotly(self.x_title), showticklabels=True, **panel.at)
        if self.log_x:
            powers = powers_of_two(data[self.x])
            figure.update_xaxes(type="log", tickvals=powers, ticktext=[str(power) for power in powers])
        else:
            figure.update_xaxes(**whole_ticks(data[self.x]))
        figure.update_yaxes(exponentformat="power")
        figure.update_layout(showlegend=data[self.series].nunique() > 1)
        if self.log_y:
            figure.update_yaxes(type="log", dtick=1)
        return figure

    def matplotlib(self, data: pd.DataFrame, canvas: Canvas) -> None:
        """Draw the panels on a canvas."""
        grid = self._grid(data)
        axes = grid.matplotlib(canvas, shared_y=self.share_y)
        looks, at_zero = styles([str(name) for name in data[self.series].unique()]), self._rows_at_zero(grid, data)
        handles: dict[str, Any] = {}
        for panel in grid.panels(data):
            axis = axes[panel.row][panel.column]
            for name, rows in panel.data.groupby(self.series, sort=False):
                handles.setdefault(str(name), self._curve(axis, rows, looks[str(name)]))
            for level, colour in self._levels(panel, looks, INK):
                axis.axhline(level, color=colour, linewidth=0.7 if colour == INK else 1.0, linestyle=":")
            if self.log_y:
                axis.set_yscale("log", nonpositive="mask")
            elif panel.row in at_zero:
                axis.set_ylim(*AT_ZERO)
            if panel.column == 0:
                axis.set_ylabel(for_matplotlib(self._y_title(panel.row_name)))
            self._set_ticks(axis, data)
            if panel.is_lowest:
                axis.set_xlabel(for_matplotlib(self.x_title))
                axis.tick_params(labelbottom=True)
        if len(handles) > 1:
            grid.legend(canvas, handles)

    def _traces(self, name: str, rows: pd.DataFrame, look: Style, *, show: bool) -> list[dict[str, Any]]:
        shared = {"type": "scatter", "legendgroup": name}
        curve = shared | {
            "x": _small(rows[self.x]),
            "y": _small(rows[self.y]),
            "name": for_plotly(name),
            "showlegend": show,
            "mode": "lines+markers" if len(rows) <= FEW else "lines",
            "line": {"color": look.colour, "dash": look.dash[0], "width": 2},
            "marker": {"color": look.colour, "symbol": look.marker[0], "size": 6},
        }
        band = rows.dropna(subset=["low", "high"])
        if self.whiskers:
            ends = {"array": rows["high"] - rows[self.y], "arrayminus": rows[self.y] - rows["low"]}
            return [curve | ({"error_y": {**ends, "thickness": 1.6, "width": 4}} if len(band) else {})]
        if band.empty:
            return [curve]
        x, low, high = (_small(band[name]) for name in (self.x, "low", "high"))
        area = shared | {
            "x": np.concatenate([x, x[::-1]]),
            "y": np.concatenate([low, high[::-1]]),
            "mode": "lines",
            "line": {"width": 0},
            "fill": "toself",
            "fillcolor": look.tint(0.18),
            "hoverinfo": "skip",
            "showlegend": False,
        }
        return [area, curve]

    def _curve(self, axis: Any, rows: pd.DataFrame, look: Style) -> Any:
        band = rows.dropna(subset=["low", "high"])
        if self.whiskers and len(band):
            ends = [band[self.y] - band["low"], band["high"] - band[self.y]]
            axis.errorbar(band[self.x], band[self.y], ends, fmt="none", color=look.colour, capsize=2.5, linewidth=1)
        elif len(band):
            axis.fill_between(band[self.x], band["low"], band["high"], color=look.colour, alpha=0.18, linewidth=0)
        shape = {"marker": look.marker[1], "markersize": 4, "markevery": max(1, len(rows) // 12)}
        (line,) = axis.plot(
            rows[self.x], rows[self.y], color=look.colour, linestyle=look.dash[1], linewidth=1.4, **shape
        )
        return line

    def _set_ticks(self, axis: Any, data: pd.DataFrame) -> None:
        if self.log_x:
            powers = powers_of_two(data[self.x])
            axis.set_xscale("log", base=2)
            axis.set_xticks(powers, [str(power) for power in powers])
            return
        ticks = whole_ticks(data[self.x])
        locator = MultipleLocator(ticks["dtick"], ticks["tick0"]) if ticks else MaxNLocator(6, integer=True)
        axis.xaxis.set_major_locator(locator)

    def _levels(self, panel: Panel, looks: Mapping[str, Style], neutral: str) -> list[tuple[float, str]]:
        """Dotted lines across a panel, each with its colour."""
        level = self._reference(panel.row_name)
        lines = [] if level is None else [(level, neutral)]
        if self.levels is None:
            return lines
        firsts = panel.data.drop_duplicates(self.series).dropna(subset=[self.levels])
        own = zip(firsts[self.levels], firsts[self.series], strict=True)
        return lines + [(float(level), looks[str(name)].colour) for level, name in own]

    def _rows_at_zero(self, grid: Grid, data: pd.DataFrame) -> set[int]:
        """Rows of panels in which every value is zero."""
        panels = list(grid.panels(data))
        return {panel.row for panel in panels} - {panel.row for panel in panels if panel.data[self.y].any()}

    def _grid(self, data: pd.DataFrame) -> Grid:
        return Grid.of(data, self.row, self.column)

    def _reference(self, row: str) -> float | None:
        return self.references.get(row, self.references.get(""))

    def _y_title(self, row: str) -> str:
        return self.row_titles.get(row, self.y_title)


def _small(column: Any) -> np.ndarray:
    """Seven digits are more than a screen shows, in half the room."""
    return column.to_numpy(np.float32)
