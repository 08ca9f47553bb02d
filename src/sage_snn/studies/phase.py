"""A search and its confirmation: settings are chosen on some seeds, frozen in a file, and judged on others."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from ..recipes.recipe import Recipe
from .variant import StudyError

if TYPE_CHECKING:
    from .study import Study

Phase = Literal["search", "confirmation"]


def refuse_wrong_phase(study: "Study", source: str, searches: Sequence["Study"]) -> None:
    """A confirmation repeats what its searches tried, on seeds that they did not use, against a fixed slope."""
    if study.phase != "confirmation":
        if study.follows:
            raise StudyError(f"{source}: a study that follows another confirms it; add `phase: confirmation`")
        return
    if not study.follows:
        raise StudyError(f"{source}: a confirmation needs the search whose settings it repeats; add `follows: NAME`")
    for search in searches:
        if search.phase != "search":
            raise StudyError(f"{source}: it follows {search.name}, which is no search; add `phase: search` there")
    _refuse_used_seeds(study, source, searches)
    _refuse_new_policies(study, source, searches)


def phase_words(study: "Study", searches: Sequence["Study"]) -> str:
    """What the page of a study shows, and what that means; empty for a study of neither kind."""
    if study.phase is None:
        return ""
    mine = study.recipes()
    if study.phase == "search":
        return (
            f"This is a search, on {seeds_in_words(mine)}: its best looks better here than it is, because it was "
            "chosen by these very numbers. What is chosen needs a confirmation on other seeds."
        )
    theirs = [recipe for search in searches for recipe in search.recipes()]
    images = "the same images" if _images(mine) & _images(theirs) else "other images"
    return (
        f"This is a confirmation of {' and '.join(search.name for search in searches)}: its settings, and the fixed "
        f"slope that they are measured against ({study.compare.baseline}), were frozen before these runs. The "
        f"intervals are of {seeds_in_words(mine)} and {images}; the search had {seeds_in_words(theirs)}."
    )


def seeds_in_words(recipes: Iterable[Recipe]) -> str:
    """`seed 3`, `seeds 1 to 5`, `seeds 1, 3 and 4`."""
    seeds = sorted({recipe.seed for recipe in recipes})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"


def _refuse_used_seeds(study: "Study", source: str, searches: Sequence["Study"]) -> None:
    mine = study.recipes()
    for search in searches:
        theirs = {recipe.seed for recipe in search.recipes()}
        if used := [recipe for recipe in mine if recipe.seed in theirs]:
            raise StudyError(
                f"{source}: the search {search.name} used {seeds_in_words(used)}; a confirmation needs others, "
                f"such as {max(theirs) + 1} and more"
            )


def _refuse_new_policies(study: "Study", source: str, searches: Sequence["Study"]) -> None:
    tried = [recipe.policy.model_dump() for search in searches for recipe in search.recipes()]
    baseline = study.compare.baseline
    if baseline is None:
        raise StudyError(
            f"{source}: a confirmation compares with the best fixed slope of its search; name it in "
            "`compare: {baseline: LABEL}`"
        )
    for planned in study.runs():
        kind = planned.recipe.policy.kind
        if planned.recipe.policy.model_dump() not in tried:
            raise StudyError(
                f"{source}: {planned.label} was not tried in {' or '.join(study.follows)}, and a confirmation repeats "
                "what was; add it to the search, or remove it here"
            )
        if kind != "fixed" and _is_called(planned.label, baseline):
            raise StudyError(f"{source}: the baseline {baseline} is {kind}; a confirmation compares with a fixed slope")


def _is_called(label: str, baseline: str) -> bool:
    """Is it the baseline's label, or that with words of a setting, such as `lr=0.1`?"""
    return label.startswith(baseline) and all("=" in word for word in label.removeprefix(baseline).split())


def _images(recipes: Iterable[Recipe]) -> set[tuple[object, ...]]:
    """Which images of which data; two subsets of other numbers share none."""
    return {(recipe.data, recipe.subset if recipe.train_images or recipe.test_images else None) for recipe in recipes}
