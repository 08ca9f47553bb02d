"""Studies: grids of runs, where they run, and what can honestly be said about their results."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .plan import Planned
    from .study import Study, load_study, shipped_studies
    from .variant import StudyError

__all__ = ["Planned", "Study", "StudyError", "load_study", "shipped_studies"]

__getattr__, __dir__ = lazily(
    __name__,
    {".plan": ("Planned",), ".study": ("Study", "load_study", "shipped_studies"), ".variant": ("StudyError",)},
)
