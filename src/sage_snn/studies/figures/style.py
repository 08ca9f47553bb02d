"""Looks shared by both renderers: colours safe for colour-blind readers, and shapes that survive black and white."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...recipes.policies import POLICIES

# Okabe and Ito's palette without black and yellow, each of which vanishes on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Five dashes beside six colours: the pair repeats after thirty series only.
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."), ("longdash", (0, (9, 3))))
MARKERS = (("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("x", "X"), ("star", "*"))
HATCHES = (("", ""), ("/", "///"), ("x", "xxx"), (".", "..."), ("\\", "\\\\\\"), ("+", "++"))
HEAT = ("Cividis", "cividis")  # its lightness grows evenly, so a photocopy keeps the order
INK = "#444444"

PAPER: dict[Any, Any] = {  # matplotlib's settings; fonts are embedded as outlines that every publisher accepts
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Style:
    """How one series looks; pairs are (plotly, matplotlib)."""

    colour: str
    dash: tuple[str, Any]
    marker: tuple[str, str]
    hatch: tuple[str, str]

    def tint(self, share: float) -> str:
        """The colour at this opacity, as CSS."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{share})"


def style(index: int) -> Style:
    """The look of the series of this index."""
    again = index + index // len(COLOURS)  # as many markers as colours: the second time round each meets another
    return Style(
        COLOURS[index % len(COLOURS)],
        DASHES[index % len(DASHES)],
        MARKERS[again % len(MARKERS)],
        HATCHES[again % len(HATCHES)],
    )


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A look per series; the plain policies keep theirs in every figure."""
    names, policies = list(names), POLICIES.names
    if not any(name in policies for name in names):
        return {name: style(index) for index, name in enumerate(names)}
    order = dict.fromkeys([*policies, *names])
    looks = {name: style(index) for index, name in enumerate(order)}
    return {name: looks[name] for name in names}


def label_order(label: str) -> tuple[int, str]:
    """Sorting key: the plain policies as recipes list them, then the others by name."""
    policies = POLICIES.names
    return (policies.index(label) if label in policies else len(policies), label)


def for_plotly(text: object) -> str:
    """Plotly reads a little HTML in its labels; names must not."""
    return html.escape(str(text), quote=False)


def for_matplotlib(text: object) -> str:
    """Matplotlib reads dollars as mathematics; names must not."""
    return str(text).replace("$", r"\$")


def plotly_template() -> dict[str, Any]:
    """A plain look without a background of its own; the page puts its own colours on top."""
    axis: Mapping[str, Any] = {
        "gridcolor": "rgba(128,128,128,0.25)",
        "zerolinecolor": "rgba(128,128,128,0.5)",
        "linecolor": "rgba(128,128,128,0.7)",
        "showline": True,
        "ticks": "outside",
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 13}},
    }
    return {
        "layout": {
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "hoverlabel": {"namelength": -1},
        }
    }
