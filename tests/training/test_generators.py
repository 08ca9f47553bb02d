import random

import numpy as np
import torch
import torch.nn.functional as F

from sage_snn.recipes.models import SpikformerPart
from sage_snn.runs.checkpoint import load_checkpoint, save_checkpoint
from sage_snn.training import train
from sage_snn.training.generators import generator_states, restore_generators, seed_generators

CPU = torch.device("cpu")


def drawn():
    return random.random(), random.gauss(), np.random.normal(), np.random.rand(), torch.rand(2).tolist()


def test_what_was_saved_is_drawn_again(tmp_path):
    seed_generators(3)
    random.gauss(), np.random.normal()  # each keeps the second of a pair for later
    save_checkpoint(tmp_path, 1, {"generators": generator_states(CPU)})
    first = drawn()
    assert drawn() != first
    restore_generators(load_checkpoint(tmp_path)["generators"], CPU)
    assert drawn() == first


def test_ranks_draw_numbers_of_their_own_and_the_first_those_of_the_seed():
    seen = []
    for rank in (0, 1, 2, 0):
        seed_generators(5, rank)
        seen.append(drawn())
    assert seen[0] == seen[3]
    assert len({str(values) for values in seen}) == 3
    torch.manual_seed(5)
    assert torch.rand(2).tolist() == seen[0][-1]


def noisy(build):
    """A network whose head draws from all three generators in training."""

    def built(self, **shape):
        network = build(self, **shape)

        def disturb(head, args):
            noise = 1 + 0.1 * (np.random.rand() + random.random())
            return (F.dropout(args[0] + 1, 0.5) * noise,) if head.training else args

        network.head.register_forward_pre_hook(disturb)
        return network

    return built


def test_a_network_with_dropout_resumes_to_the_same_bits(tmp_path, tiny, monkeypatch, interrupted, same_run):
    monkeypatch.setattr(SpikformerPart, "build", noisy(SpikformerPart.build))
    train("digits", tmp_path / "whole", settings=tiny, quiet=True)
    interrupted(tmp_path / "parts", tiny)
    seed_generators(99)
    train("digits", tmp_path / "parts", settings=tiny, resume=True, quiet=True)
    assert same_run(tmp_path / "whole", tmp_path / "parts")
