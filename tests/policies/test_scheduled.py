import pytest
import torch

from sage_snn import Scheduled
from sage_snn.control import nodes_of


def walked(model, steps=5, **options):
    with Scheduled(model, steps=4, **options) as policy:
        slopes = []
        for _ in range(steps + 1):
            slopes.append(float(policy.slopes[0]))
            assert {round(float(n.slope()), 9) for n in nodes_of(model.blocks)} == {round(slopes[-1], 9)}
            policy.step()
        return slopes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 1.0, "end": 16.0}, [1, 2, 4, 8, 16, 16]),
        ({"start": 2.0, "end": 4.0, "shape": "linear"}, [2, 2.5, 3, 3.5, 4, 4]),
        ({"start": 4.0, "end": 2.0, "shape": "cosine"}, [4, 3 + 2**-0.5, 3, 3 - 2**-0.5, 2, 2]),
        ({"shape": lambda share: 1 + share**2}, [1, 1.0625, 1.25, 1.5625, 2, 2]),
    ],
    ids=["exponential", "linear", "cosine", "callable"],
)
def test_the_slope_goes_from_start_to_end_and_stays_there(options, expected, ours):
    assert walked(ours(), **options) == pytest.approx(expected)


def test_the_stem_keeps_its_own_slope_and_remove_gives_the_model_back(ours):
    model = ours()
    with Scheduled(model, steps=3):
        assert all(node.slope is None for node in nodes_of(model.stem))
    assert all(node.slope is None for node in nodes_of(model))


def test_a_resumed_schedule_goes_on(ours):
    first, second = Scheduled(ours(), steps=10), Scheduled(ours(), steps=10)
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.slopes, second.slopes)
    assert "after 3 steps: 2 to 4 over 10 steps, exponential" in str(second)
    with pytest.raises(ValueError, match="steps: 10 there, 20 here"):
        Scheduled(ours(), steps=20).load_state_dict(first.state_dict())


def test_a_schedule_shorter_than_the_training_says_that_it_holds_its_end_value(ours):
    with Scheduled(ours(), end=5.0, steps=10) as policy:
        assert policy.remarks(30) == ["the schedule ends after 10 of 30 steps: the slope stays at 5 from there"]
        assert policy.remarks(10) == []
        assert "2 to 5 over 10 steps, exponential, constant afterwards" in str(policy)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start": 0.0, "steps": 1}, "slopes must be positive"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 1, "shape": "zigzag"}, "shape must be one of linear, exponential, cosine"),
        ({"steps": 1, "shape": lambda share: -1.0}, "the schedule gave -1.0 at step 0"),
    ],
)
def test_impossible_schedules_are_refused_and_leave_the_model_free(options, told, ours):
    model = ours()
    with pytest.raises(ValueError, match=told):
        Scheduled(model, **options)
    Scheduled(model, steps=1).remove()
