"""What can be wrong with a study, each with its cure; told before anything is trained."""

import difflib
from typing import TYPE_CHECKING

from ..recipes.fields import nearest, shortened
from .plan import recipe_fields
from .variant import StudyError

if TYPE_CHECKING:
    from .study import Study

NO_RESULT = ("data_dir", "workers", "name", "about")  # may be set, but change nothing that could be compared


def refuse_mistakes(study: "Study", source: str) -> None:
    """Raise the first that is found."""
    _check_fields(study, source)
    _check_axes(study, source)
    _check_variants(study, source)
    _check_baseline(study, source)


def _check_fields(study: "Study", source: str) -> None:
    """Every name is a recipe's."""
    varied = [key for part in (*(one.settings for one in study.variants), *study.without) for key in part]
    if not study.axes and not study.variants:
        raise StudyError(f"{source}: nothing varies; add `axes:`, such as `seed: [1, 2, 3]`")
    for key in [*study.axes, *varied, *study.settings]:
        if key in NO_RESULT:
            if key in study.settings:
                continue
            raise StudyError(f"{source}: {key} does not change a result, so it cannot be an axis; remove it")
        if key not in recipe_fields():
            raise StudyError(f"{source}: no recipe field {shortened(key, 200)!r}{_nearest_field(key)}")


def _check_axes(study: "Study", source: str) -> None:
    """Nothing is said twice."""
    varied = [key for variant in study.variants for key in variant.settings]
    for key, values in study.axes.items():
        if not values:
            raise StudyError(f"{source}: the axis {key} is empty; give it at least one value, or remove it")
        if key in study.settings:
            raise StudyError(f"{source}: {key} is both an axis and a setting; keep one of them")
        if key in varied:
            raise StudyError(f"{source}: {key} is both an axis and set by a variant; keep one of them")
    if both := sorted(set(varied) & set(study.settings)):
        raise StudyError(f"{source}: {both[0]} is both in settings and set by a variant; keep one of them")


def _check_variants(study: "Study", source: str) -> None:
    """Recipes of one's own and protocols need labels that tell them apart."""
    titles = list[str]()
    for number, variant in enumerate(study.variants, start=1):
        if study.compares_systems and not variant.protocol:
            who = variant.label or f"variant {number}"
            raise StudyError(f"{source}: {who} names no protocol and others do; give it `protocol: own` or `common`")
        if not (variant.recipe or variant.protocol):
            continue
        if not variant.title:
            raise StudyError(f"{source}: variant {number} names a recipe or protocol; give it a label too")
        titles.append(variant.title)
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise StudyError(f"{source}: two variants are called {twice!r}; give each a label of its own")


def _check_baseline(study: "Study", source: str) -> None:
    known = list(dict.fromkeys(planned.label for planned in study.runs()))
    baseline = study.compare.baseline
    starts = [variant.title for variant in study.variants] if study.compares_systems else []
    is_known = any(label == baseline or label.startswith(f"{baseline} ") for label in known)
    if baseline is not None and not (baseline in starts if starts else is_known):
        raise StudyError(f"{source}: the baseline {baseline!r} is none of its runs: {', '.join(known)}")


def _nearest_field(key: str) -> str:
    """A field whose last part reads the same comes first: time_steps -> model.time_steps."""
    known = recipe_fields()
    last = {name.rpartition(".")[2]: name for name in reversed(known)}
    near = difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {last[near[0]]!r}?"
    return nearest(key, known) or "; leave it out, or see what `sage-snn recipes digits` shows"
