"""The parts of a study's file: what belongs together in it, checked like a recipe's."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from ..recipes.fields import flat
from ..recipes.recipe import spelled_out
from ..runs.folder import RunError


class StudyError(RunError):
    """A study that cannot be used or run; the message says what would be right."""


class StudyPart(BaseModel):
    """Fields that belong together; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Protocol = Literal["own", "common"]


class Variant(StudyPart):
    """Settings that belong together, as one point of an axis of their own; on top of the study's recipe or another.

    `protocol` says of a whole system whether it is trained by its own recipe or by the one that all share.
    """

    label: str | None = None
    recipe: str | None = None
    protocol: Protocol | None = None
    settings: dict[str, Any] = {}

    @field_validator("settings")
    @classmethod
    def _dotted(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dotted(value)

    @property
    def title(self) -> str | None:
        """The label, with the protocol where there is one."""
        return f"{self.label} ({self.protocol})" if self.label and self.protocol else self.label


class Comparing(StudyPart):
    """Against whom, and in what, runs are compared; without a baseline it is fixed, or else the first."""

    baseline: str | None = None
    metric: Literal["last_top1", "best_top1", "images_per_second"] = "last_top1"


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings under dotted names, however they were nested."""
    return dict(flat(spelled_out(settings)))
