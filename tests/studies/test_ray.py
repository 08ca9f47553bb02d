import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
import ray
import torch
import yaml
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from sage_snn.studies import StudyError, ray_runner
from sage_snn.studies.ray_runner import run_on_ray
from sage_snn.studies.runner import run_study
from sage_snn.studies.state import StudyState
from sage_snn.studies.status import status
from sage_snn.studies.study import parse_study

pytestmark = [
    # Ray leaves its log files and sockets to the garbage collector when a cluster is shut down.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    "epochs": 6,
    "warmup_epochs": 0,
    "max_steps_per_epoch": 4,
    "train_images": 200,
    "test_images": 60,
    "batch_size": 16,
    "lr": 0.01,
    "model": {"depth": 2, "dim": 16, "heads": 2, "time_steps": 1},
    "policy.warmup_epochs": 0,
    "policy.dead_zone": 0.0,
    "threads": 1,
}
AXES = {"policy.kind": ["fixed", "sage"], "seed": [1, 2]}


def study(**changes):
    return parse_study({"name": "tiny", "recipe": "digits", "settings": SETTINGS, "axes": AXES} | changes)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Folders of the same study, run in this process."""
    return run_study(study(), tmp_path_factory.mktemp("local"), progress=False)


def same_bits(folders, others):
    for a, b in zip(folders, others, strict=True):
        left, right = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
        for part in sorted((b / "signals").glob("*.parquet")):
            pd.testing.assert_frame_equal(pd.read_parquet(a / "signals" / part.name), pd.read_parquet(part))
    return True


@pytest.mark.slow
def test_two_workers_give_the_same_bits_as_one_process(tmp_path, local):
    folders = run_on_ray(study(), tmp_path, progress=False)
    assert same_bits(folders, local)
    assert len({line["pid"] for line in StudyState(study(), tmp_path).attempts()}) >= 2
    assert os.getpid() not in {line["pid"] for line in StudyState(study(), tmp_path).attempts()}


@pytest.mark.slow
def test_a_killed_worker_costs_one_retry_and_nothing_else(tmp_path, local):
    state, plan = StudyState(study(), tmp_path), study().runs()
    killed: list[int] = []

    def kill():
        while not killed:
            for planned in plan:
                if 1 <= state.epochs_done(planned) < 5 and state.is_busy(planned):
                    killed.append(state.owner(planned)["pid"])
                    os.kill(killed[0], signal.SIGKILL)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    folders = run_on_ray(study(), tmp_path, progress=False)
    assert killed
    assert len(state.attempts()) == len(plan) + 1
    assert same_bits(folders, local)
    assert {row.state for row in status(study(), tmp_path)} == {"done"}
    assert state.failures() == {}


@pytest.mark.slow
def test_a_running_cluster_of_two_nodes_is_joined_and_left_alone(tmp_path, local):
    small = {"num_cpus": 1, "object_store_memory": 128 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(**small)
    try:
        folders = run_on_ray(study(), tmp_path, address=cluster.address, progress=False)
        assert same_bits(folders, local)
        assert len(cluster.list_all_nodes()) == 2
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_node_that_goes_and_comes_costs_a_retry_and_nothing_else(tmp_path):
    fields = {"name": "tiny", "recipe": "digits", "settings": SETTINGS | {"epochs": 24}, "axes": AXES}
    longer = parse_study(fields)
    state, out = StudyState(longer, tmp_path / "ray"), tmp_path / "ray"
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(fields))
    code = "import sys; from sage_snn.studies import load_study; from sage_snn.studies.ray_runner import run_on_ray; "
    code += "run_on_ray(load_study(sys.argv[1]), sys.argv[2], address=sys.argv[3], progress=False)"

    def wait_for(busy):
        while sum(state.is_busy(planned) and state.epochs_done(planned) > 0 for planned in longer.runs()) < busy:
            assert driver.poll() is None, "it ended before its node could go"
            time.sleep(0.01)

    small = {"num_cpus": 1, "object_store_memory": 128 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    driver = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, f"{tmp_path}/tiny.yaml", f"{out}", cluster.address]
    )
    try:
        wait_for(1)  # the driver is on the head, which stays
        node = cluster.add_node(**small)
        wait_for(2)
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(**small)
        assert driver.wait(timeout=240) == 0
    finally:
        driver.kill()
        cluster.shutdown()
    assert len(state.attempts()) == len(longer.runs()) + 1
    assert state.failures() == {}
    folders = [state.run_folder(planned).path for planned in longer.runs()]
    assert same_bits(folders, run_study(longer, tmp_path / "local", progress=False))


@pytest.mark.slow
def test_missing_data_stop_a_study_on_ray_once_with_the_cure(tmp_path):
    lost = study(settings=SETTINGS | {"data": "cifar10", "data_dir": str(tmp_path / "no-data")})
    with pytest.raises(StudyError, match=r"study tiny did not start, for want of its data: cifar10(.|\n)*--data-dir"):
        run_on_ray(lost, tmp_path, progress=False)
    assert {row.state for row in status(lost, tmp_path)} == {"waiting"}
    assert not ray.is_initialized()


@pytest.mark.slow
def test_finished_studies_need_no_cluster(tmp_path, local):
    out = local[0].parents[1]
    assert run_on_ray(study(), out, address="127.0.0.1:9", progress=False) == local


def test_an_address_that_does_not_answer_is_told(tmp_path):
    with pytest.raises(StudyError, match=r"no Ray cluster answers at 127\.0\.0\.1:9 .*leave out --ray-address"):
        run_on_ray(study(), tmp_path, address="127.0.0.1:9", progress=False)
    with pytest.raises(StudyError, match="is not a Ray address; give host:port"):
        run_on_ray(study(), tmp_path, address="nonsense", progress=False)


def test_an_address_that_answers_something_else_is_told_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_runner, "ANSWER_SECONDS", 4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(StudyError, match=r"no Ray cluster answers at .* within 4 s"):
            run_on_ray(study(), tmp_path, address=address, progress=False)
        assert time.monotonic() - started < 60  # and not the minutes that Ray itself waits


def test_a_missing_ray_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r'pip install "sage-snn\[ray\]"'):
        run_on_ray(study(), tmp_path, progress=False)


def test_open_threads_are_refused(tmp_path):
    loose = study(settings={key: value for key, value in SETTINGS.items() if key != "threads"})
    with pytest.raises(StudyError, match="leaves `threads` open; add `threads: 2`"):
        run_on_ray(loose, tmp_path, progress=False)
