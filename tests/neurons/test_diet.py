import pytest
import torch
from torch import nn

from sage_snn import Fixed, Learnable
from sage_snn.neurons import DietLIF


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_spikes_and_gradients_worked_out_by_hand():
    node, x = DietLIF(threshold=1.0, leak=0.5).double(), column(0.8, 0.8, 0.2).requires_grad_()
    # U before the reset: 0.8, then 0.4 + 0.8 = 1.2, which fires and leaves 0.2, then 0.1 + 0.2 = 0.3.
    spikes = node(x)
    assert spikes.flatten().tolist() == [0.0, 1.0, 0.0]
    spikes.sum().backward()
    # Surrogates 0.3 * (1 - |U - 1|): 0.24, 0.24, 0.09. A current reaches later steps by 0.5 each; the reset adds none.
    assert x.grad.flatten().tolist() == pytest.approx([0.24 + 0.12 + 0.0225, 0.24 + 0.045, 0.09])
    # d (U / threshold - 1): -0.8; -1.2; -0.3 and half of the -1 that the reset took.
    assert node.threshold.grad.item() == pytest.approx(-0.24 * 0.8 - 0.24 * 1.2 - 0.09 * 0.8)
    # dU by the leak: 0; 0.8; 0.2 + 0.5 * 0.8.
    assert node.leak.grad.item() == pytest.approx(0.24 * 0.8 + 0.09 * 0.6)


def test_a_membrane_at_the_threshold_does_not_fire():
    assert DietLIF()(column(1.0, 0.0, 0.5)).flatten().tolist() == [0.0, 0.0, 1.0]


def smooth_spikes(x_seq, resets, threshold, leak):
    """The same recurrence with the integral of the surrogate in place of the step, and the resets as they were."""
    u, outputs = torch.zeros_like(x_seq[0]), []
    for x, reset in zip(x_seq, resets, strict=True):
        u = leak * u + x
        d = (u / threshold - 1).clamp(-1, 1)
        outputs.append(0.3 * (d - 0.5 * d * d.abs()))
        u = u - threshold * reset
    return torch.stack(outputs)


@pytest.mark.parametrize(("threshold", "leak"), [(1.0, 1.0), (0.6, 0.9), (2.3, 0.5)])
def test_threshold_leak_and_currents_have_the_gradients_of_the_smooth_neuron(threshold, leak):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, 30, generator=generator, dtype=torch.float64) + 0.7
    weights = torch.randn(6, 4, 30, generator=generator, dtype=torch.float64)
    node, x = DietLIF(threshold, leak).double(), x.requires_grad_()
    nn.init.constant_(node.threshold, threshold)
    nn.init.constant_(node.leak, leak)
    spikes = node(x)
    assert 0.1 < spikes.mean() < 0.9
    (weights * spikes).sum().backward()

    def loss(threshold=threshold, leak=leak, nudge=0.0):
        return float((weights * smooth_spikes(x.detach() + nudge, spikes.detach(), threshold, leak)).sum())

    step = 1e-6
    by_threshold = (loss(threshold=threshold + step) - loss(threshold=threshold - step)) / (2 * step)
    by_leak = (loss(leak=leak + step) - loss(leak=leak - step)) / (2 * step)
    assert node.threshold.grad.item() == pytest.approx(by_threshold, rel=1e-5, abs=1e-6)
    assert node.leak.grad.item() == pytest.approx(by_leak, rel=1e-5, abs=1e-6)
    nudge = torch.zeros_like(x)
    nudge[1, 2, 3] = step
    by_current = (loss(nudge=nudge) - loss(nudge=-nudge)) / (2 * step)
    assert x.grad[1, 2, 3].item() == pytest.approx(by_current, rel=1e-5, abs=1e-6)


def test_a_call_keeps_nothing_and_membranes_are_not_in_half_precision():
    node, x = DietLIF(), torch.full((400, 1), 0.01, dtype=torch.bfloat16)
    spikes = node(x)
    assert torch.equal(spikes, node(x))
    assert spikes.dtype is torch.bfloat16
    assert spikes.sum() == int(400 * x[0].float())


def test_threshold_and_leak_are_numbers_that_train_and_load():
    node = DietLIF(0.4, 0.9)
    assert "threshold=0.4, leak=0.9, gain=0.3" in repr(node)
    assert {name: tuple(p.shape) for name, p in node.named_parameters()} == {"threshold": (), "leak": ()}
    other = DietLIF()
    other.load_state_dict(node.state_dict())
    assert (other.threshold.item(), other.leak.item()) == pytest.approx((0.4, 0.9))
    with pytest.raises(ValueError, match="threshold must be positive, not -1"):
        DietLIF(-1.0)


def gradient(node, value):
    """Of a single spike by its current, which is its distance to a threshold of 1, plus 1."""
    x = column(value).requires_grad_()
    node(x).sum().backward()
    return x.grad.item()


def test_policies_change_the_surrogate_and_leave_its_scale():
    node = DietLIF().double()
    network = nn.Sequential(node)
    assert gradient(node, 1.2) == pytest.approx(0.3 * 0.8)
    with Fixed(network, slope=2.0, absolute=True) as fixed:
        # A triangle of height 2 and half-width 1 / 2.
        assert gradient(node, 1.2) == pytest.approx(0.3 * (2 - 4 * 0.2))
        assert "1 nodes of ours, DietLIF, slope a number: a plain loop over time" in str(fixed)
    with Learnable(network, slope=8.0) as learnable:  # 8 * 1 / 4: the base of this surrogate is 1
        assert gradient(node, 1.2) == pytest.approx(0.3 * (2 - 4 * 0.2))
        # d spike / d slope = surrogate * distance / slope, and the parameter is the logarithm of the slope.
        assert next(learnable.parameters()).grad.item() == pytest.approx(0.3 * 1.2 * 0.2)
        assert "slope in a tensor: a plain loop over time" in str(learnable)
    assert gradient(node, 1.2) == pytest.approx(0.3 * 0.8)
