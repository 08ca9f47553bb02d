"""A figure: tidy data, words, and one drawing that both plotly (the page) and matplotlib (papers) can render."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure as Canvas

from .style import PAPER, plotly_template


class Drawing(Protocol):
    """Turns tidy data into pictures; knows the names of the columns it reads."""

    def plotly(self, data: pd.DataFrame) -> Any:
        """A plotly figure without a title."""
        ...

    def matplotlib(self, data: pd.DataFrame, canvas: Canvas) -> None:
        """Draw on an empty matplotlib figure and set its size."""
        ...

    def width(self, data: pd.DataFrame) -> int:
        """Pixels below which the figure would not be readable."""
        ...


@dataclass(frozen=True)
class Figure:
    """One figure of a report; `name` is its file name and its anchor in the page."""

    name: str
    title: str
    caption: str
    data: pd.DataFrame
    drawing: Drawing

    @property
    def shown(self) -> pd.DataFrame:
        """The data as people read them: epochs count from 1, where files count from 0."""
        return self.data.assign(epoch=self.data["epoch"] + 1) if "epoch" in self.data else self.data

    def plotly(self) -> Any:
        """The figure as a plotly.graph_objects.Figure."""
        figure = self.drawing.plotly(self.shown)
        # Overwritten: to merge a template with plotly's own takes longer than many a figure.
        look = {"template": plotly_template(), "margin": {"l": 60, "r": 16, "t": 56, "b": 48}}
        figure.update_layout(look, overwrite=True)
        return figure

    def matplotlib(self) -> Canvas:
        """The figure as a matplotlib figure, detached from pyplot."""
        with mpl.rc_context(PAPER):
            canvas = Canvas(layout="constrained", dpi=150)
            self.drawing.matplotlib(self.shown, canvas)
        return canvas

    @property
    def min_width(self) -> int:
        """Pixels below which the page lets the figure scroll sideways."""
        return self.drawing.width(self.data)


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write <name>.png, <name>.pdf and <name>.csv; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.{kind}" for kind in ("png", "pdf", "csv")]
    with mpl.rc_context(PAPER), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in scripts that the font lacks
        canvas = figure.matplotlib()
        # The two canvases rather than savefig, which draws everything once more to lay it out.
        FigureCanvasAgg(canvas).print_png(paths[0], pil_kwargs={"compress_level": 1})
        canvas.set_layout_engine("none")  # what was found for the PNG serves the PDF too
        FigureCanvasPdf(canvas).print_pdf(paths[1], metadata={"Title": figure.title, "CreationDate": None})
    figure.data.to_csv(paths[2], index=False)
    return paths
