"""Groups, sources and what a policy says of them: no attention, blocks that say nothing, references that were lost."""

import gc
from functools import partial

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn

from sage_snn import SAGE, Block, DeadZoneTanh, Fixed, Group, Learnable, LIFNode, Statistics, find_layers, policy_of
from sage_snn.control import Firing, nodes_of
from sage_snn.laws import Law
from sage_snn.policies.settings import differences, parse_settings, settings_of

STRICT = DeadZoneTanh(dead_zone=0.0)


class Convolutions(nn.Sequential):
    """A spiking network without attention: (T, B, 3, 8, 8) -> (T, B, 4, 8, 8)."""

    def __init__(self, node=LIFNode):
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(3, 4, 3, padding=1),
            node(step_mode="m"),
            nn.Conv2d(4, 4, 3, padding=1),
            node(step_mode="m"),
        ]
        super().__init__(*layers)

    def forward(self, x):
        functional.reset_net(self)
        for layer in self:
            x = layer(x) if hasattr(layer, "surrogate_function") else layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return x


def events(seed=0):
    return 3 * torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("node", [LIFNode, neuron.LIFNode], ids=["ours", "jelly"])
def test_sage_follows_firing_rates_where_there_is_no_attention(node):
    model, rates = Convolutions(node), []
    for layer in (model[1], model[3]):
        layer.register_forward_hook(lambda _module, _args, output: rates.append(float(output.detach().mean())))
    sage = SAGE(model, warmup_steps=0, groups=find_layers(model), source="firing", law=STRICT)
    for seed in range(4):
        rates.clear()
        model(events(seed)).sum().backward()
        sage.step()
        assert [float(values) for values in sage.readings] == pytest.approx(rates)
        assert sage.dispersion.tolist() == pytest.approx(rates)  # one node a group: its mean is its rate
    assert sage.slopes.tolist() != [4.0, 4.0]
    written = [float(n.slope() if isinstance(n, LIFNode) else n.surrogate_function.alpha) for n in nodes_of(model)]
    assert written == pytest.approx(sage.slopes.tolist())
    assert "1: the spikes of LIFNode, 1 nodes" in str(sage)
    sage.remove()


def test_a_resumed_sage_on_firing_goes_on_to_the_same_bits():
    model, again = Convolutions(), Convolutions()
    sage, resumed = (
        SAGE(m, warmup_steps=1, groups=find_layers(m), source="firing", law=STRICT) for m in (model, again)
    )
    for seed in range(3):
        model(events(seed))
        sage.step()
    resumed.load_state_dict(sage.state_dict())
    for m, policy in ((model, sage), (again, resumed)):
        m(events(7))
        policy.step()
    assert torch.equal(sage.slopes, resumed.slopes)
    assert [float(a) for a in sage.readings] == [float(a) for a in resumed.readings]


def test_fixed_and_learnable_ask_for_groups_and_never_for_attention():
    model = Convolutions()
    with Fixed(model, slope=2.0) as policy:
        assert [group.name for group in policy.groups] == ["1", "3"]
        assert [float(node.slope()) for node in nodes_of(model)] == [2.0, 2.0]
    with Learnable(model, per="block") as policy:
        model(events()).sum().backward()
        assert len(list(policy.parameters())) == 2
        assert all(p.grad is not None for p in policy.parameters())
    with Fixed(model, groups=[Group([model[3]], name="last")], slope=3.0) as policy:
        assert policy.slopes.tolist() == [3.0]
        assert model[1].slope is None


def test_groups_without_anything_to_read_and_double_names_are_refused():
    model = Convolutions()
    with pytest.raises(ValueError, match="group 1, 3 has nothing to read; pass source='firing'"):
        SAGE(model, warmup_steps=0, groups=find_layers(model))
    with pytest.raises(ValueError, match=r"no spiking self-attention found in Convolutions; pass blocks="):
        SAGE(model, warmup_steps=0)
    with pytest.raises(ValueError, match="source must be one of attention, firing"):
        SAGE(model, warmup_steps=0, source="smell")
    for kind in (partial(SAGE, warmup_steps=0), Fixed, Learnable):
        with pytest.raises(ValueError, match="blocks= and groups= name the same thing"):
            kind(model, blocks=find_layers(model), groups=find_layers(model))
    with pytest.raises(ValueError, match="no spiking node with a surrogate slope found in Linear"):
        find_layers(nn.Linear(1, 1))
    Fixed(model).remove()


def test_sources_of_ones_own_are_read_too():
    model = Convolutions()
    groups = [
        Group([node], name=str(i), sources=[Firing(node), Firing(model[1])]) for i, node in enumerate(nodes_of(model))
    ]
    signal = lambda spikes: spikes.double().mean().reshape(1)  # noqa: E731
    with SAGE(model, warmup_steps=0, groups=groups, signal=signal, law=STRICT) as sage:
        spikes = model(events())
        sage.step()
        assert sage.readings[1][0] == pytest.approx(float(spikes.detach().double().mean()))
        assert sage.readings[0][0] == sage.readings[0][1] == sage.readings[1][1]


# Blocks that say nothing


def test_a_block_with_one_head_keeps_its_base_and_stays_out_of_the_mean(ours, images):
    model = ours(depth=3)
    described = [
        Block(nodes_of(block), block.attention.query.lif, block.attention.key.lif, heads, layout="TBCN", name=str(i))
        for i, (block, heads) in enumerate(zip(model.blocks, (1, 4, 4), strict=True))
    ]
    with SAGE(model, warmup_steps=0, blocks=described, law=STRICT) as sage:
        for seed in range(5):
            model(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
            sage.step()
            assert sage.slopes[0] == 4.0
            assert sage.zscores[0] == 0.0
            assert float(sage.zscores[1:].sum()) == pytest.approx(0.0, abs=1e-12)
        assert sage.slopes[1] != 4.0
        assert "0: 1 heads read from LIFNode TBCN" in str(sage)
        assert "(one value, nothing to spread: keeps its base)" in str(sage)
        assert sage.dispersion[0] == 0.0


def test_a_block_with_one_head_keeps_its_base_whatever_the_law_makes_of_zero(ours, images):
    model = ours()
    described = [
        Block(nodes_of(block), block.attention.query.lif, block.attention.key.lif, heads, layout="TBCN", name=str(i))
        for i, (block, heads) in enumerate(zip(model.blocks, (1, 4), strict=True))
    ]
    with SAGE(model, warmup_steps=0, blocks=described, law=lambda z: 4.5 + 0 * z) as sage:
        model(images)
        sage.step()
        assert sage.slopes.tolist() == [4.0, 4.5]


def test_silent_blocks_are_named_and_their_zero_is_a_reading(ours, images):
    model = ours()
    norm = model.blocks[1].attention.query.norm
    nn.init.zeros_(norm.weight)
    nn.init.constant_(norm.bias, -5.0)
    with SAGE(model, warmup_steps=0, law=STRICT) as sage:
        model(images)
        sage.step()
        assert sage.dispersion[1] == 0.0
        lines = [line for line in str(sage).splitlines() if "silent" in line]
        assert len(lines) == 1
        assert "blocks.1.attention" in lines[0]


def test_a_block_in_eval_mode_is_said_not_to_have_been_read(ours, images):
    model = ours()
    model.blocks[1].eval()
    with SAGE(model, warmup_steps=0) as sage:
        model(images)
        with pytest.warns(UserWarning, match=r"the signal of blocks\.1\.attention was not read.*eval mode"):
            sage.step()


def test_a_forgotten_reset_is_said_with_its_cure(jelly, images):
    model = jelly()
    with SAGE(model, warmup_steps=0) as sage:
        model(images).sum().backward()
        sage.step()
        with pytest.warns(UserWarning, match=r"call functional\.reset_net\(model\) after every step"):
            model(images)


# Slopes relative and absolute


def test_slopes_are_relative_and_said_to_be_unless_they_are_absolute():
    model = Convolutions(partial(LIFNode, surrogate_function=surrogate.ATan(2.0)))
    with Fixed(model, slope=2.0) as policy:
        assert float(model[1].slope()) == 1.0
        assert "2 nodes have a base slope of 2, not 4: they get 0.5 times each slope" in str(policy)
    with Fixed(model, slope=2.0, absolute=True) as policy:
        assert float(model[1].slope()) == 2.0
        assert "slope 2 as it is, whatever the base" in str(policy)
        assert "times each slope" not in str(policy)


# Compiled models


def test_number_slopes_under_torch_compile_are_warned_of_with_the_cure(jelly, ours, images):
    compiled = torch.compile(jelly(), backend="eager")
    with pytest.warns(UserWarning, match=r"the model is compiled, and SpikingJelly's nodes.*sage_snn\.LIFNode"):
        SAGE(compiled, warmup_steps=0).remove()
    with SAGE(jelly(), warmup_steps=0) as sage:
        assert "under torch.compile: SpikingJelly's nodes keep their slope as a number" in str(sage)
    with SAGE(torch.compile(ours(), backend="eager"), warmup_steps=0) as sage:  # nothing to warn of
        assert "under torch.compile" not in str(sage)


def test_a_model_compiled_after_attaching_is_warned_of_at_the_first_step(jelly, images):
    torch.compiler.reset()
    model = jelly()
    with SAGE(model, warmup_steps=0) as sage:
        torch.compile(model, backend="eager")(images).sum().backward()
        with pytest.warns(UserWarning, match="the model is compiled"):
            sage.step()


# Lost references


@pytest.mark.parametrize("kind", [Fixed, Learnable, partial(SAGE, warmup_steps=0)], ids=["Fixed", "Learnable", "SAGE"])
def test_a_policy_whose_reference_was_lost_is_found_on_its_model(kind, ours):
    model = ours()
    assert policy_of(model) is None
    kind(model)
    gc.collect()
    with pytest.raises(RuntimeError, match=r"has a policy already.*sage_snn\.policy_of\(model\)"):
        Fixed(model)
    policy_of(model).remove()
    assert policy_of(model) is None
    Fixed(model).remove()


def test_a_model_is_not_kept_alive_by_its_policy(ours):
    import weakref

    model = ours()
    Fixed(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# Settings


def test_a_field_that_was_not_saved_had_its_default():
    law = DeadZoneTanh()
    saved = {"law": {"kind": "DeadZoneTanh", "base": 4.0, "gain": 0.5}}
    assert differences(saved, {"law": law}) == []
    assert differences(saved, {"law": DeadZoneTanh(low=2.0)}) == [
        "law: DeadZoneTanh(low=3.0) there, DeadZoneTanh(low=2.0) here"
    ]


def test_settings_as_they_were_written_before_are_understood():
    text = (
        "HeadEntropy(temperature=0.25, over='keys', images=None); population_std; "
        "Statistics(decay=0.95, first='observation', running='cumulative', momentum=0.01, restart=False, eps=1e-08, "
        "relative_eps=False, center=True); DeadZoneTanh(base=4.0, gain=0.5, dead_zone=0.25, low=3.0, high=5.0, "
        "continuous=False); self.neurons='block', self.every=1, self.warmup_steps=44, self.same_step=False"
    )
    parsed = parse_settings(text)
    assert parsed["spread"] == "std"
    assert parsed["statistics"] == settings_of(Statistics())
    assert parsed["law"] == settings_of(DeadZoneTanh())
    assert (parsed["neurons"], parsed["warmup_steps"], parsed["same_step"]) == ("block", 44, False)


def test_functions_are_known_by_name_and_a_warning_says_so(ours, images):
    def steep(z):
        return 4 + z.tanh()

    def gentle(z):
        return 4 + 0.1 * z.tanh()

    def saved(law: Law):
        with SAGE(ours(), warmup_steps=0, law=law) as sage:
            return sage.state_dict()

    with SAGE(ours(), warmup_steps=0, law=steep) as sage:
        with pytest.raises(ValueError, match=r"law: .*gentle there, .*steep here"):
            sage.load_state_dict(saved(gentle))
        with pytest.warns(UserWarning, match="law of this SAGE are functions, known by their names only"):
            sage.load_state_dict(saved(steep))
