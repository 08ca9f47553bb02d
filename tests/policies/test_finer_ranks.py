"""Two processes on different data: finer slopes have the same histories everywhere, those of the joint batch."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from sage_snn import SAGE, DeadZoneTanh, LIFNode

pytestmark = pytest.mark.slow
RANKS, STRICT = 2, DeadZoneTanh(dead_zone=0.0)
GRAINS = {"head": {}, "channel": {"source": "firing"}, "token": {}}


def histories(model, batches):
    """History and slopes of each grain after a few steps; BatchNorm is in eval mode, so images do not meet."""
    found = {}
    for per, options in GRAINS.items():
        with SAGE(model, warmup_steps=1, per=per, law=STRICT, **options) as sage:
            for batch in batches:
                model.zero_grad()
                model(batch).square().mean().backward()
                sage.step()
            state = sage.state_dict()
            found[per] = torch.cat([*state["history"].values(), state["slopes"], *state.get("fine_slopes", ())])
    return found


class Branches(nn.Module):
    """Two nodes, of which only the first runs where the input is negative."""

    def __init__(self):
        super().__init__()
        self.nodes = nn.ModuleList(LIFNode(v_threshold=0.2, step_mode="m", carry_state=False) for _ in range(2))

    def forward(self, x):
        spikes = self.nodes[0](x.abs())
        return self.nodes[1](spikes) if x.sum() > 0 else spikes


def work(rank, folder, model, batches):
    """What one process does with its half of each batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    found = histories(copy.deepcopy(model), [batch.chunk(RANKS)[rank] for batch in batches])
    with SAGE(branches := Branches(), warmup_steps=0, per="channel", source="firing", law=STRICT) as sage:
        branches(torch.ones(2, 1, 3, 2) * (1 - 2 * rank))  # the second process does not reach the second node
        sage.step()
        found["widths"] = torch.tensor([len(slopes) for slopes in sage.fine_slopes])
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_agree_with_each_other_and_with_the_joint_batch(ours, settle, tmp_path):
    batches = torch.randn(4, 8, 3, 16, 16, generator=torch.Generator().manual_seed(4)).unbind()
    model = settle(ours(), batches[0])
    mp.spawn(work, (str(tmp_path), model, batches), nprocs=RANKS)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS))
    joint = histories(model, batches)
    for per in GRAINS:
        assert torch.equal(first[per], second[per])
        assert torch.allclose(first[per], joint[per], rtol=1e-6, atol=1e-9), per
    assert first["widths"].tolist() == second["widths"].tolist() == [3, 3]
