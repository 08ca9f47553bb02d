"""The policies as the paper has them, whatever the defaults of a recipe are."""

from typing import Any

from ...recipes.policies import AnyPolicy

SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"slope": 4.0},
    "learnable": {"slope": 4.0, "per": "network"},
    "sage": {
        "signal": "entropy",
        "spread": "std",
        "temperature": 0.25,
        "decay": 0.95,
        "first": "observation",
        "running": "cumulative",
        "momentum": 0.01,
        "restart": False,
        "eps": 1e-8,
        "relative_eps": False,
        "center": True,
        "gain": 0.5,
        "dead_zone": 0.25,
        "low": 3.0,
        "high": 5.0,
        "continuous": False,
        "neurons": "block",
        "every": 1,
        "slopes_per": "group",
    },
}
SCHEDULE = ("kind", "warmup_epochs")  # when a policy acts depends on the length of a training, not on the method


def unusual(policy: AnyPolicy) -> tuple[str, ...]:
    """Fields of the policy, as `policy.gain`, that are not the paper's; its kind, if the paper has no such policy."""
    paper = SETTINGS.get(policy.kind)
    if paper is None:
        return ("policy.kind",)
    chosen = policy.model_dump(mode="json", exclude={*SCHEDULE})
    return tuple(f"policy.{name}" for name, value in chosen.items() if name not in paper or value != paper[name])
