"""What each policy of the recipes costs, as a share of a training step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from ..policies import Policy
from ..recipes.policies import POLICIES, PolicyPart
from .contestants import Contest, training_step
from .measures import Row
from .timing import Timing, alternate

EPOCH = 4  # steps, so that warm-ups are over soon
TURN = 2  # steps of a turn, for those that act in every step; others have a turn as long as their period
LONGEST = 64  # steps of a turn
# Where a default is made for long epochs: the same share of the steps in short ones.
SHORTENED: dict[str, dict[str, Any]] = {"dgs": {"search_batches": 2}}  # of 20 steps, as 200 of five epochs of CIFAR-10
# What else is read, or written: one of each source, and the target that is not the default.
OTHERWISE = {
    "sage": [("signal", "firing_rate"), ("signal", "near_threshold"), ("signal", "gradient_gain")],
    "learnable_constants": [("target", "time_constant")],
}


@dataclass(frozen=True)
class Turn:
    """Some training steps with a policy, after which it has done all that it ever does."""

    steps: int
    step: Callable[[], None]

    def __call__(self) -> None:
        """Take them."""
        for _ in range(self.steps):
            self.step()

    def timing(self, whole: Timing) -> Timing:
        """Of a step."""
        return Timing(tuple(seconds / self.steps for seconds in whole.seconds))


def policies(size: Contest, repetitions: int) -> Iterator[Row]:
    """Every policy that a recipe can name, taking turns with the plain step; one that cannot run here is named."""
    turns = {"plain step": Turn(TURN, training_step(size.ours(), size))}
    for name, part in parts():
        try:
            turns[name] = _turn(part, size)
        except (ValueError, RuntimeError) as error:
            print(f"policy {name} does not take part on {size.network}: {str(error).splitlines()[0]}")
    whole = alternate(turns, repetitions)
    times = {name: turn.timing(whole[name]) for name, turn in turns.items()}
    plain = times.pop("plain step")
    yield Row("policies", str(size), "plain step", plain.minimum, plain.median, "s", None)
    for name, timing in times.items():
        extra = timing.minus(plain)
        share = f"{100 * extra / plain.median:+.2f} % of the step, median difference"
        yield Row("policies", str(size), name, extra, extra, "s", None, share)


def parts() -> Iterator[tuple[str, PolicyPart]]:
    """Name and settings: each kind as it is by default, in every other size of what it sets (`per`), and otherwise."""
    for kind, part in POLICIES.kinds.items():
        if kind == "none":
            continue
        settings = SHORTENED.get(kind, {})
        yield kind, _made(part, settings)
        for field, info in part.model_fields.items():
            if field == "per" or field.endswith("_per"):
                others = [value for value in get_args(info.annotation) if value != info.default]
                yield from ((f"{kind} per {value}", _made(part, settings | {field: value})) for value in others)
        for field, value in OTHERWISE.get(kind, []):
            yield f"{kind}, {value.replace('_', ' ')}", _made(part, settings | {field: value})


def _made(part: Any, settings: dict[str, Any]) -> PolicyPart:
    return part(**settings)


def _turn(part: Any, size: Contest) -> Turn:
    model, batch = size.ours(), size.data()
    policy: Any = part.build(model, EPOCH, 0)
    period = getattr(policy, "every", 1)
    if period > LONGEST:
        raise ValueError(f"it acts every {period} steps, and a turn here has at most {LONGEST}")
    turn = Turn(max(TURN, period), training_step(model, size, _after(policy, batch)))
    turn()  # what it trips over shows here
    return turn


def _after(policy: Policy, batch: Any) -> Callable[[], None]:
    """The policy's step, with the batch if it wants it, as the training loop calls it."""
    step: Any = policy.step
    arguments = [batch] if getattr(policy, "needs_batch", False) else []

    def after() -> None:
        for parameter in policy.parameters():
            parameter.grad = None
        step(*arguments)

    return after
