"""What a checkpoint holds: all that a resumed run needs to go on to the same bits, of every rank."""

import warnings
from typing import TYPE_CHECKING, Any

from .. import compat
from ..runs.folder import RunError
from .devices import from_all
from .generators import generator_states, restore_generators

if TYPE_CHECKING:
    from .loop import Training

_COUNTERS = ("epoch", "step", "epoch_seconds", "seconds", "best")


def state_of(run: "Training") -> dict[str, Any]:
    """What all ranks have alike, as the first has it, and under `ranks` what each has of its own; a collective call."""
    return {
        **{name: getattr(run, name) for name in _COUNTERS},
        "model": run.network.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "policy": run.policy.state_dict(),
        "precision": compat.precision_of(run.fabric).state_dict(),
        "recorder": run.recorder.state_dict(),
        "ranks": from_all(run.fabric, _own(run)),
    }


def restore(run: "Training", state: dict[str, Any]) -> None:
    """Go on where `state_of` was taken; every rank takes what is its own."""
    try:
        _restore(run, state)
    except RunError:
        raise
    except Exception as error:  # a forged state may lack, or hold, anything
        told = (str(error).splitlines() or [""])[0]
        raise RunError(
            f"the checkpoint in {run.folder.path} does not fit its recipe ({type(error).__name__}: {told}); "
            "copy it there again, or train in a new folder (--out)"
        ) from None


def _restore(run: "Training", state: dict[str, Any]) -> None:
    own = _share(state, run.fabric.global_rank, run.fabric.world_size)
    for name in _COUNTERS:
        setattr(run, name, state[name])
    run.network.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.policy.load_state_dict(state["policy"])
    compat.precision_of(run.fabric).load_state_dict(state["precision"])
    run.recorder.load_state_dict(state["recorder"])
    run.look.loss_sum = own["loss_sum"]
    run.observer.load_state_dict(own["observer"])
    if "generators" in own:
        restore_generators(own["generators"], run.fabric.device)


def _own(run: "Training") -> dict[str, Any]:
    """Of one rank: it has seen its own images."""
    return {
        "loss_sum": run.look.loss_sum,
        "observer": run.observer.state_dict(),
        "generators": generator_states(run.fabric.device),
    }


def _share(state: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    if "ranks" not in state:  # checkpoints of version 1 have what the first rank had
        if ranks > 1 and state["step"] > 0:
            warnings.warn(
                "the checkpoint is of a version that kept the training loss and the observations of the first process "
                "only: those of this epoch are not exact",
                stacklevel=2,
            )
        return {name: state[name] for name in ("loss_sum", "observer")}
    if len(state["ranks"]) != ranks:
        raise RunError(
            f"the checkpoint is of {len(state['ranks'])} processes, and this is a run of {ranks}; "
            f"go on with {len(state['ranks'])} (torchrun --nproc-per-node), or choose another --out"
        )
    return state["ranks"][rank]
