import math

import pytest
import torch
import torch.nn.functional as F

from sage_snn.losses import TET, CrossEntropy, SumCrossEntropy

STEPS = torch.tensor([[[0.0, 0.0]], [[0.0, math.log(3.0)]]])  # two steps, one image: p = (1/2, 1/2), then (1/4, 3/4)
LABEL = torch.tensor([1])


def test_cross_entropy_is_that_of_the_mean_over_time():
    # Mean logits (0, log 3 / 2): p of class 1 is sqrt 3 / (1 + sqrt 3).
    expected = -math.log(math.sqrt(3) / (1 + math.sqrt(3)))
    assert CrossEntropy()(STEPS, LABEL).item() == pytest.approx(expected)


def test_cross_entropy_of_one_step_is_torchs_to_the_bit():
    logits, labels = torch.randn(64, 10), torch.randint(0, 10, (64,))
    assert torch.equal(CrossEntropy()(logits[None], labels), F.cross_entropy(logits, labels))


def test_sum_cross_entropy_is_that_of_the_sum_over_time():
    assert SumCrossEntropy()(STEPS, LABEL).item() == pytest.approx(-math.log(3 / 4))


def test_tet_averages_the_entropies_and_pulls_logits_to_the_target():
    entropy = (math.log(2) + math.log(4 / 3)) / 2
    distance = (1 + 1 + 1 + (math.log(3) - 1) ** 2) / 4
    assert TET(weight=0)(STEPS, LABEL).item() == pytest.approx(entropy)
    assert TET(weight=1)(STEPS, LABEL).item() == pytest.approx(distance)
    assert TET()(STEPS, LABEL).item() == pytest.approx(0.95 * entropy + 0.05 * distance)
    assert TET(weight=1, target=0.0)(STEPS, LABEL).item() == pytest.approx(math.log(3) ** 2 / 4)


def test_tet_of_one_step_without_the_second_term_is_plain_cross_entropy():
    logits, labels = torch.randn(1, 64, 10, dtype=torch.float64), torch.randint(0, 10, (64,))
    assert TET(weight=0)(logits, labels).item() == pytest.approx(F.cross_entropy(logits[0], labels).item(), abs=1e-12)


def test_the_gradient_of_tet_is_that_of_its_formula():
    logits, labels = torch.randn(3, 8, 10, dtype=torch.float64, requires_grad=True), torch.randint(0, 10, (8,))
    TET(weight=0.2, target=0.7)(logits, labels).backward()
    steps, images, classes = logits.shape
    entropy = (logits.detach().softmax(-1) - F.one_hot(labels, 10)) / (steps * images)
    distance = 2 * (logits.detach() - 0.7) / (steps * images * classes)
    assert torch.allclose(logits.grad, 0.8 * entropy + 0.2 * distance, atol=1e-12)


@pytest.mark.parametrize("loss", [CrossEntropy(), SumCrossEntropy(), TET()], ids=lambda loss: type(loss).__name__)
def test_soft_targets_of_one_class_are_that_class(loss):
    logits, labels = torch.randn(3, 8, 10, requires_grad=True), torch.randint(0, 10, (8,))
    soft = F.one_hot(labels, 10).float()
    assert loss(logits, soft).item() == pytest.approx(loss(logits, labels).item())
    loss(logits, soft).backward()
    assert logits.grad.shape == logits.shape


def test_tet_is_spikingjellys_without_the_second_term():
    from spikingjelly.activation_based.functional import temporal_efficient_training_cross_entropy as theirs

    logits, labels = torch.randn(4, 8, 10), torch.randint(0, 10, (8,))
    assert TET(weight=0)(logits, labels).item() == pytest.approx(theirs(logits, labels).item())


@pytest.mark.parametrize("weight", [-0.1, 1.5])
def test_a_weight_outside_its_range_is_refused(weight):
    with pytest.raises(ValueError, match="weight of TET's second term must be in"):
        TET(weight=weight)


@pytest.mark.parametrize("loss", [CrossEntropy(), SumCrossEntropy(), TET()], ids=lambda loss: type(loss).__name__)
def test_what_no_loss_over_time_can_use_is_refused_with_the_cure(loss):
    with pytest.raises(
        ValueError, match=r"every time step \(T, B, classes\), got \(2, 3\); use a network that gives them"
    ):
        loss(torch.zeros(2, 3), torch.tensor([0, 1]))
    logits = torch.zeros(4, 2, 3)
    with pytest.raises(ValueError, match=r"soft targets \(2, 4\) do not fit logits \(4, 2, 3\); give \(B, classes\)"):
        loss(logits, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\], these reach from -1 to 2; normalise them"):
        loss(logits, torch.tensor([[-1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    assert loss(logits, torch.full((2, 3), 1 / 3)).isfinite()
