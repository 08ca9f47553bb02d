import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sage_snn.laws import DeadZoneTanh

# Beyond |z| = 8 neighbouring doubles give the same tanh.
scores = st.floats(-8, 8, allow_nan=False)


def slope(z, **options):
    return DeadZoneTanh(**options)(torch.tensor([z], dtype=torch.float64)).item()


@pytest.mark.parametrize(("z", "expected"), [(0.25, 4.12246), (-0.25, 3.87754), (1.0, 4.38080), (-1.0, 3.61920)])
def test_law_gives_the_numbers_worked_out_by_hand(z, expected):
    assert slope(z) == pytest.approx(expected, abs=5e-6)


@given(st.floats(-0.25, 0.25, exclude_min=True, exclude_max=True))
def test_dead_zone_keeps_the_base_slope(z):
    assert slope(z) == 4.0


@given(scores, scores)
def test_slope_grows_strictly_outside_the_dead_zone(a, b):
    a, b = sorted((a, b))
    if b - a > 1e-6 and not (abs(a) < 0.25 and abs(b) < 0.25):
        assert slope(a) < slope(b)


@given(scores, st.booleans())
def test_law_is_odd_about_its_base(z, continuous):
    assert slope(z, continuous=continuous) - 4 == pytest.approx(4 - slope(-z, continuous=continuous), abs=1e-12)


@given(scores)
def test_negative_gain_mirrors_the_law(z):
    assert slope(z, gain=-0.5) == pytest.approx(8 - slope(z), abs=1e-12)


@given(st.floats(allow_nan=False))
def test_slope_stays_within_its_bounds(z):
    assert 3.0 <= slope(z, gain=7.0) <= 5.0


def test_clip_binds_at_both_ends():
    assert slope(3.0, gain=2.0) == 5.0
    assert slope(-3.0, gain=2.0) == 3.0
    assert slope(-3.0, gain=2.0, low=3.5) == 3.5


def test_zero_gain_never_moves_the_slope():
    z = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert (DeadZoneTanh(gain=0.0)(z) == 4.0).all()


def test_jump_at_the_edge_is_gain_times_tanh():
    assert slope(0.25) - slope(math.nextafter(0.25, 0)) == pytest.approx(0.5 * math.tanh(0.25), abs=1e-12)


def test_continuous_law_has_no_jump():
    assert slope(0.25, continuous=True) == 4.0
    assert slope(0.2501, continuous=True) == pytest.approx(4.0, abs=1e-4)
    assert slope(1.0, continuous=True) == pytest.approx(4 + 0.5 * math.tanh(0.75), abs=1e-12)
    assert slope(-1.0, continuous=True) == pytest.approx(4 - 0.5 * math.tanh(0.75), abs=1e-12)


def test_law_treats_every_block_by_itself():
    z = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    expected = torch.tensor([slope(-1.0), 4.0, slope(1.0)], dtype=torch.float64)
    assert torch.equal(DeadZoneTanh()(z), expected)


@pytest.mark.parametrize(
    "bounds",
    [{"low": 0.0}, {"low": -1.0}, {"low": 4.5}, {"high": 3.5}, {"base": 6.0}, {"base": -4.0, "low": -5.0}],
    ids=str,
)
def test_bounds_that_are_not_positive_or_miss_the_base_are_refused(bounds):
    with pytest.raises(ValueError, match="0 < low <= base <= high"):
        DeadZoneTanh(**bounds)


def test_negative_dead_zone_is_refused():
    with pytest.raises(ValueError, match="dead_zone must not be negative"):
        DeadZoneTanh(dead_zone=-0.1)
