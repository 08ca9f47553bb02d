"""A grid of panels: who stands where, in plotly and in matplotlib."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from .style import for_matplotlib, for_plotly

SHORT = 12  # whole numbers on an axis, up to which renderers would put ticks between them
WRAP = 4  # panels side by side before a single row is broken
PANEL_WIDTH, PANEL_HEIGHT = 200, 250  # least pixels on the page
INCHES = (3.4, 2.5)  # a panel on paper


@dataclass(frozen=True)
class Panel:
    """One panel and the rows of the data that belong in it."""

    row: int
    column: int
    row_name: str
    data: Any
    is_lowest: bool

    @property
    def at(self) -> dict[str, int]:
        """Where plotly draws it."""
        return {"row": self.row + 1, "col": self.column + 1}


@dataclass(frozen=True)
class Grid:
    """Panels by the values of two columns of the data, either of which may be missing."""

    row_key: str | None
    column_key: str | None
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]

    @classmethod
    def of(cls, data: pd.DataFrame, row: str | None, column: str | None) -> "Grid":
        """The grid that the values of two columns span, in the order in which they first appear."""
        values = [tuple(data[key].unique()) if key else ("",) for key in (row, column)]
        return cls(row, column, *values)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of panels; a single long row is broken into several."""
        rows, columns = len(self.rows), len(self.columns)
        if rows > 1 or columns <= WRAP:
            return rows, columns
        return -(-columns // WRAP), WRAP

    @property
    def width(self) -> int:
        """Pixels below which the panels would not be readable."""
        columns = self.shape[1]
        return 300 if columns == 1 else 80 + PANEL_WIDTH * columns

    def panels(self, data: pd.DataFrame) -> Iterator[Panel]:
        """The panels with their data, row by row."""
        rows, columns = self.shape
        for r, row in enumerate(self.rows):
            for c, column in enumerate(self.columns):
                part = data if self.row_key is None else data[data[self.row_key] == row]
                part = part if self.column_key is None else part[part[self.column_key] == column]
                down, across = r + c // columns, c % columns
                lowest = down == rows - 1 or (len(self.rows) == 1 and c + columns >= len(self.columns))
                yield Panel(down, across, str(row), part, lowest)

    def plotly(self, *, shared_y: bool) -> Any:
        """Empty plotly panels with their titles."""
        from plotly.subplots import make_subplots

        rows, columns = self.shape
        names = [for_plotly(name) for name in self.columns]
        shared: dict[str, Any] = {"shared_xaxes": "columns", "shared_yaxes": "rows" if shared_y else False}
        figure = make_subplots(
            rows=rows,
            cols=columns,
            **shared,
            subplot_titles=names + [""] * (rows * columns - len(names)) if any(names) else None,
            horizontal_spacing=(0.02 if shared_y else 0.07) if columns > 1 else 0,
            vertical_spacing=0.16 / rows if len(self.rows) > 1 else min(0.16, 0.4 / rows),
        )
        high = max(380, 130 + PANEL_HEIGHT * rows)
        figure.update_layout(height=high, legend={"y": 1 + (26 if any(names) else 8) / (high - 104)})
        figure.update_annotations(font_size=13)
        return figure

    def matplotlib(self, canvas: Canvas, *, shared_y: bool) -> list[list[Any]]:
        """Empty matplotlib axes with their titles; places without a panel are hidden."""
        rows, columns = self.shape
        wide, high = INCHES if columns > 1 else (5.2, 3.2 if rows == 1 else 2.1)
        canvas.set_size_inches(wide * columns * (0.8 if columns > 2 else 1), high * rows + 0.4)
        axes = canvas.subplots(rows, columns, squeeze=False, sharex="col", sharey="row" if shared_y else False)
        for index, axis in enumerate(axes.flat):
            if len(self.rows) == 1 and index >= len(self.columns):
                axis.set_visible(False)
            elif index < len(self.columns) and str(self.columns[index]):
                axis.set_title(for_matplotlib(self.columns[index]), y=1.0)  # given, matplotlib need not search for it
        return [list(line) for line in axes]

    def legend(self, canvas: Canvas, handles: dict[str, Any]) -> None:
        """One legend above all panels."""
        names = [for_matplotlib(name) for name in handles]
        letters = max((len(name) for name in names), default=0) + 9  # the sample of the line takes the room of nine
        per_line = max(1, min(len(names), int(canvas.get_size_inches()[0] * 14 / letters)))
        canvas.legend(list(handles.values()), names, loc="outside upper center", ncols=per_line, handlelength=3)


def whole_ticks(values: Any) -> dict[str, int]:
    """Ticks for a plotly axis of few whole numbers, such as epochs; nothing for others, which plotly does well."""
    numbers = np.unique(np.asarray(values, dtype=float))
    if not len(numbers) or (numbers % 1).any() or (span := int(numbers[-1] - numbers[0])) > SHORT:
        return {}
    return {"tick0": int(numbers[0]), "dtick": max(1, -(-span // 6))}


def powers_of_two(values: Any) -> list[int]:
    """Ticks of an axis that doubles: all powers from the smallest value to the largest."""
    numbers = np.asarray(values, dtype=float)
    low, high = (int(np.floor(np.log2(end))) for end in (numbers.min(), numbers.max()))
    return [2**power for power in range(low, high + 1)]
