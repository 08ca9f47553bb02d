"""Run a study on a Ray cluster: one task per run, the same bits as in one process at equal threads."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..data.loader import usable_cores
from ..training import InterruptedRunError
from ..training.stopping import StopRequest, stopping_politely
from .plan import Planned
from .progress import StudyProgress, announcement
from .runner import conclude, missing_data, no_data, train_one
from .state import BusyRunError, StudyState, first_lines
from .study import Study
from .variant import StudyError

ANSWER_SECONDS = 20
RETRIES = 3  # after a lost worker; every one goes on from the run's checkpoint
BUSY_SECONDS = 30  # a lost worker's process may outlive the news of its loss
STOP_SECONDS = 60

Outcome = tuple[str, Any]  # ("done", top-1), ("failed", why), ("stopped", None)


def run_on_ray(study: Study, out: str | Path = "runs", address: str | None = None, progress: bool = True) -> list[Path]:
    """Train what is missing on the cluster at `address`, or on one started here; `out` must be on a shared disk."""
    _require_ray()
    state, plan = StudyState(study, out), study.runs()
    threads = [_threads(study, planned) for planned in plan]
    state.prepare()
    missing = [planned for planned in plan if state.summary(planned) is None]
    with StudyProgress(state, plan, quiet=not progress) as display:
        display.say(announcement(state, plan))
        if missing:
            # Handlers come after Ray has set its own.
            with _cluster(address, max(threads)), stopping_politely() as stop:
                _require_data(study, missing)
                _run_all(state, missing, display, stop)
        return conclude(state, plan, display)


def _require_data(study: Study, missing: Sequence[Planned]) -> None:
    """Asked of a worker, which may see other disks than this process does."""
    import ray

    recipes = [planned.recipe for planned in missing]
    if (why := ray.get(ray.remote(missing_data).options(num_cpus=1).remote(recipes))) is not None:
        raise no_data(study, why)


def _run_all(state: StudyState, missing: Sequence[Planned], display: StudyProgress, stop: StopRequest) -> None:
    import ray

    waiting = {_submit(state, planned): planned for planned in missing}
    restarts: dict[str, int] = {}
    while waiting:
        if stop.asked:
            _cancel(list(waiting))
            raise InterruptedRunError(f"study {state.study.name} was stopped; run the same command again to go on")
        ready, _ = ray.wait(list(waiting), timeout=1.0)
        for reference in ready:
            planned = waiting.pop(reference)
            kind, value = _outcome(reference)
            if kind == "stopped" and restarts.get(planned.key, 0) < RETRIES:
                # Its node asked it to leave, not we: another one can go on.
                restarts[planned.key] = restarts.get(planned.key, 0) + 1
                waiting[_submit(state, planned)] = planned
            elif kind == "done":
                state.set_failure(planned, None)
                display.finished(planned, value)
            else:
                why = value or f"its worker was asked to stop {RETRIES + 1} times"
                state.set_failure(planned, why)
                display.say(f"FAILED  {planned.key}  {planned.label}: {why[:300]}")


def _submit(state: StudyState, planned: Planned) -> Any:
    import ray

    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    needs = {"num_cpus": planned.recipe.threads, "num_gpus": gpus, "max_retries": RETRIES}
    return ray.remote(_task).options(name=planned.key, **needs).remote(state, planned)


def _task(state: StudyState, planned: Planned) -> Outcome:
    """In a worker; errors come back as text, since their classes may need what the driver does not have."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return "done", train_one(state, planned)
        except BusyRunError as error:
            if time.monotonic() > deadline:
                return "failed", first_lines(error)
            time.sleep(1.0)
        except InterruptedRunError:
            return "stopped", None
        except Exception as error:
            return "failed", first_lines(error)


def _outcome(reference: Any) -> Outcome:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(reference)
    except RayError as error:
        lines = str(error).strip().splitlines()
        return "failed", f"its worker was lost {RETRIES + 1} times ({lines[0] if lines else type(error).__name__})"


def _cancel(references: list[Any]) -> None:
    """Ask all tasks to stop; those that run write a checkpoint first."""
    import ray

    for reference in references:
        ray.cancel(reference)
    ray.wait(references, num_returns=len(references), timeout=STOP_SECONDS)


@contextmanager
def _cluster(address: str | None, threads: int) -> Iterator[None]:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray is going to do, without its warning
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    mine = not ray.is_initialized()
    if mine and address is not None:
        _require_answer(address)
        ray.init(address=address, **quiet)
    elif mine:
        cores = max(threads, usable_cores())
        ray.init(num_cpus=cores, include_dashboard=False, object_store_memory=128 * 2**20, **quiet)
    try:
        largest = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if largest < threads:
            raise StudyError(
                f"a run needs {threads} CPUs and the largest node of the cluster has {largest:.0f}; "
                "lower `threads` in the study's settings"
            )
        yield
    finally:
        if mine:
            ray.shutdown()


def _require_ray() -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        raise StudyError('Ray is not installed: pip install "sage-snn[ray]", or leave out --on ray') from None


def _require_answer(address: str) -> None:
    """Ray itself would wait for minutes, and end the process when it gives up."""
    cure = "start one with `ray start --head`, or leave out --ray-address and one is started here"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdigit():
            raise StudyError(f"{address!r} is not a Ray address; give host:port, such as 10.0.0.1:6379, or auto")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS / 2).close()
        except OSError as error:
            raise StudyError(f"no Ray cluster answers at {address} ({error}); {cure}") from None
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); ray.shutdown()"
    try:
        command = [sys.executable, "-W", "ignore", "-c", code, address]
        subprocess.run(command, timeout=ANSWER_SECONDS, check=True, capture_output=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        told = f" ({reason[-1]})" if reason and isinstance(error, subprocess.CalledProcessError) else ""
        raise StudyError(f"no Ray cluster answers at {address} within {ANSWER_SECONDS} s{told}; {cure}") from None


def _threads(study: Study, planned: Planned) -> int:
    """Bits depend on the number of threads, so a study on many machines must fix it."""
    if planned.recipe.threads is None:
        raise StudyError(f"study {study.name} leaves `threads` open; add `threads: 2` to its settings")
    return planned.recipe.threads
