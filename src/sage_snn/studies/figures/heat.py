"""Heat maps in a grid of panels with one colour scale."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from .panels import Grid, whole_ticks
from .style import HEAT, for_matplotlib, for_plotly


@dataclass(frozen=True)
class Heat:
    """A panel per `column`: one cell per (`y`, `x`), coloured by `colour`."""

    x: str
    y: str
    colour: str
    x_title: str
    y_title: str
    colour_title: str
    column: str

    def width(self, data: pd.DataFrame) -> int:
        """Pixels below which the cells would not be readable."""
        return Grid.of(data, None, self.column).width + 60

    def plotly(self, data: pd.DataFrame) -> Any:
        """A plotly figure of the panels."""
        grid = Grid.of(data, None, self.column)
        figure = grid.plotly(shared_y=True)
        for panel in grid.panels(data):
            cells = self._cells(panel.data)
            hover = f"{self.y} %{{y}}, {self.x} %{{x}}: %{{z:.3g}}<extra></extra>"
            trace = {"type": "heatmap", "coloraxis": "coloraxis", "hovertemplate": hover}
            trace |= {"x": cells.columns.to_numpy(), "y": cells.index.to_numpy(), "z": cells.to_numpy()}
            figure.add_trace(trace, **panel.at)
            figure.update_yaxes(dtick=max(1, len(cells) // 12), showgrid=False, **panel.at)
            figure.update_xaxes(showgrid=False, tickformat="d", **whole_ticks(cells.columns), **panel.at)
            if panel.column == 0:
                figure.update_yaxes(title_text=for_plotly(self.y_title), **panel.at)
            if panel.is_lowest:
                figure.update_xaxes(title_text=for_plotly(self.x_title), showticklabels=True, **panel.at)
        title = {"text": for_plotly(self.colour_title), "side": "right", "font": {"size": 13}}
        bar = {"title": title, "exponentformat": "power"}
        figure.update_layout(coloraxis={"colorscale": HEAT[0], "colorbar": bar, "cmin": 0, "cmax": self._top(data)})
        return figure

    def matplotlib(self, data: pd.DataFrame, canvas: Canvas) -> None:
        """Draw the panels on a canvas."""
        grid = Grid.of(data, None, self.column)
        axes = grid.matplotlib(canvas, shared_y=True)
        top = self._top(data)
        image = None
        for panel in grid.panels(data):
            axis, cells = axes[panel.row][panel.column], self._cells(panel.data)
            x, y = _edges(cells.columns.to_numpy(float)), _edges(cells.index.to_numpy(float))
            image = axis.pcolormesh(x, y, cells.to_numpy(), cmap=HEAT[1], vmin=0, vmax=top, rasterized=True)
            axis.grid(visible=False)
            axis.set_yticks(cells.index.to_numpy()[:: max(1, len(cells) // 12)])
            axis.set_xticks(cells.columns.to_numpy()[:: max(1, len(cells.columns) // 5)])
            if panel.column == 0:
                axis.set_ylabel(for_matplotlib(self.y_title))
            if panel.is_lowest:
                axis.set_xlabel(for_matplotlib(self.x_title))
                axis.tick_params(labelbottom=True)
        if image is not None:
            shown = [axis for line in axes for axis in line if axis.get_visible()]
            canvas.colorbar(image, ax=shown, label=for_matplotlib(self.colour_title))

    def _top(self, data: pd.DataFrame) -> float:
        """The end of the colour scale, which starts at zero."""
        return float(np.nanmax(data[self.colour].to_numpy(float), initial=0)) or 1e-12

    def _cells(self, data: pd.DataFrame) -> pd.DataFrame:
        return data.pivot_table(index=self.y, columns=self.x, values=self.colour, dropna=False)


def _edges(centres: np.ndarray) -> np.ndarray:
    """Borders of cells around ascending centres."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
