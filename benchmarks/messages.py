"""What people are owed by a message: the file, the cure, an end."""

import re

LINES, LETTERS = 12, 600  # a case has at most eight changes; a quoted error of a reader has up to 300 letters
LISTS = {"recipe", "setting", "study", "run_file", "network"}  # these may list all that ships: LONG letters
LONG = 1500
NAMED = {  # in every message of a kind
    "recipe": "mine.yaml",
    "study": r"study\.yaml|^study study:",
    "arrays": "arrays.npz",
    "picture": "a.png",
    "idx": "ubyte",
    "events": r"\.(bin|aedat|csv|txt|npz)\b|gave no recording",
    "run_file": "/run",
    "network": "/run",
    "checkpoint": "step-",
    "weights": r"model\.safetensors|weights\.pth",
}
CURE = re.compile(
    r"\b(copy|give|save|mend|put|use|choose|train it|go on|did you mean|should|must|missing|expected|such as|needs"
    r"|known|set|at least|at most|write|change|lower|add|call|name|not both|only|leave|cannot|no slash|try|number"
    r"|make|see|remove|unpack|get|there are|login|belongs?|check)\b"
)
USAGE = re.compile(r"Usage: |requires (an|\d+) argument")


def is_users(error: BaseException) -> bool:
    """Is it an error that the command line shows as a message?"""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"RecipeError", "RunError", "DataError", "ExportError", "SystemExit"})


def untold(error: BaseException, kind: str) -> str | None:
    """What a message lacks that people are owed: the file, the cure, an end."""
    if isinstance(error, SystemExit):
        return _untold_by_command(error)
    most = LONG if kind in LISTS else LETTERS
    return _unfit(str(error), most) or (None if re.search(NAMED.get(kind, ""), str(error)) else "the file is not named")


def _untold_by_command(stop: SystemExit) -> str | None:
    """The same of a command: what it ended with, or, where that is a number, what it had printed."""
    said = getattr(stop, "said", "")
    if "Traceback" in said + str(stop.code):
        return "a traceback for people"
    if isinstance(stop.code, str):
        return _unfit(_without_typed(stop.code, getattr(stop, "typed", ())), LONG)
    return "no usage is told" if stop.code == 2 and not USAGE.search(said) else None


def _without_typed(told: str, typed: object) -> str:
    """Words of thousands of letters may be said back to who typed them."""
    for word in sorted(map(str, typed), key=len, reverse=True):
        told = told.replace(word, word[:40])
    return told


def _unfit(told: str, most: int) -> str | None:
    lines = told.splitlines() or [""]
    if len(lines) > LINES or max(map(len, lines)) > most:
        return f"{len(lines)} lines of up to {max(map(len, lines))} letters"
    if re.search(r"object at 0x|weights_only|Traceback", told):
        return "words for programmers"
    return None if CURE.search(told) else "no cure is told"
