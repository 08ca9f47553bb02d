"""Two processes that train together, stopped within an epoch and between two, on machines that share no disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sage_snn.runs import RunError
from sage_snn.runs.checkpoint import load_checkpoint
from sage_snn.training import train

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder per rank with what it wrote, and what the processes said."""
    folder = tmp_path_factory.mktemp("ranks")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-W", "ignore", *launch, str(SCRIPT), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, errors = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        process.terminate()  # which ends the ranks too
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    return folder, said


def test_a_run_of_two_ranks_stopped_within_an_epoch_resumes_to_the_same_bits(trained, same_run):
    folder, said = trained
    assert said.count("stopped after step 2 of epoch 2; go on with --resume") == 2
    assert same_run(folder / "0" / "whole", folder / "0" / "parts")
    assert len(list((folder / "0" / "whole" / "observations").glob("*.parquet"))) == 2


def test_a_run_of_two_ranks_resumes_from_between_two_epochs_to_the_same_bits(trained, same_run):
    folder, said = trained
    assert said.count("left is step 0 of epoch 2") == 1
    assert same_run(folder / "0" / "whole", folder / "0" / "boundary")
    assert len(list((folder / "0" / "boundary" / "observations").glob("*.parquet"))) == 2


def test_only_the_first_rank_writes(trained):
    folder, _ = trained
    assert [path.name for path in folder.iterdir()] == ["0"]


def test_a_checkpoint_holds_what_each_rank_has_of_its_own(trained):
    folder, _ = trained
    first, second = load_checkpoint(folder / "0" / "whole" / "checkpoints")["ranks"]
    assert not first["generators"]["torch"].equal(second["generators"]["torch"])


def test_a_run_of_two_ranks_is_not_gone_on_with_by_one(trained, tmp_path):
    folder = shutil.copytree(trained[0] / "0" / "whole", tmp_path / "run")
    (folder / "summary.json").unlink()
    with pytest.raises(RunError, match=r"ranks: 2 there, 1 here[^$]*go on with 2 processes"):
        train(folder / "recipe.yaml", folder, resume=True, quiet=True)
