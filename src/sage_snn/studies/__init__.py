"""Studies: grids of runs, where they run, and what can honestly be said about their results."""

from .study import Planned, Study, StudyError, load_study, shipped_studies

__all__ = ["Planned", "Study", "StudyError", "load_study", "shipped_studies"]
