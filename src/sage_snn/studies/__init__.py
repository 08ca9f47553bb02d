"""Studies: grids of runs, where they run, and what can honestly be said about their results."""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .study import Planned, Study, StudyError, load_study, shipped_studies

__all__ = ["Planned", "Study", "StudyError", "load_study", "shipped_studies"]

__getattr__, __dir__ = lazily(__name__, {".study": ("Planned", "Study", "StudyError", "load_study", "shipped_studies")})
