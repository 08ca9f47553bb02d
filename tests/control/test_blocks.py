"""Blocks are found by structure, query and key are read as the model has them, mistakes name their cure."""

import pytest
import torch
from spikingjelly.activation_based import functional, neuron
from spikingjelly.activation_based.model.maxformer import MaxFormer
from spikingjelly.activation_based.model.qkformer import QKFormer
from spikingjelly.activation_based.model.spike_driven_transformer import SpikeDrivenTransformer
from torch import nn

from sage_snn import SAGE, Block, Fixed, LIFNode, find_blocks
from sage_snn.control import nodes_of


class OfficialAttention(nn.Module):
    """Attribute names and layouts of the authors' attention: Linear with tokens before channels, or Conv1d."""

    def __init__(self, dim, heads, conv):
        super().__init__()
        self.num_heads, self.scale, self.kind = heads, 0.25, "conv" if conv else "linear"
        for part in ("q", "k", "v", "proj"):
            self.add_module(f"{part}_{self.kind}", nn.Conv1d(dim, dim, 1) if conv else nn.Linear(dim, dim))
            self.add_module(f"{part}_bn", nn.BatchNorm1d(dim))
            self.add_module(f"{part}_lif", neuron.LIFNode(step_mode="m"))
        self.attn_lif = neuron.LIFNode(v_threshold=0.5, step_mode="m")

    def spikes(self, part, x):
        y = getattr(self, f"{part}_{self.kind}")(x.flatten(0, 1))
        norm = getattr(self, f"{part}_bn")
        y = norm(y) if self.kind == "conv" else norm(y.transpose(-1, -2)).transpose(-1, -2)
        return getattr(self, f"{part}_lif")(y.unflatten(0, x.shape[:2]))

    def forward(self, x):
        q, k, v = (self.spikes(part, x) for part in "qkv")
        return self.spikes("proj", self.attn_lif(q * k * v))  # how they mix is nothing to find_blocks


class OfficialBlock(nn.Module):
    def __init__(self, dim, heads, conv):
        super().__init__()
        self.attn = OfficialAttention(dim, heads, conv)
        self.mlp = nn.Sequential(neuron.LIFNode(step_mode="m"), neuron.LIFNode(step_mode="m"))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class Official(nn.Module):
    def __init__(self, conv, dim=32, heads=4):
        super().__init__()
        self.conv, self.embed = conv, nn.Linear(48, dim)
        self.block = nn.ModuleList(OfficialBlock(dim, heads, conv) for _ in range(2))

    def forward(self, x):
        x = self.embed(x.reshape(2, -1, 4, 48))  # two steps, four tokens, from the batch of the other models
        x = x.transpose(-1, -2) if self.conv else x
        for block in self.block:
            x = block(x)
        return x.mean((0, 2 if not self.conv else 3))


class Recorder:
    """A signal that keeps what it is given."""

    def __init__(self):
        self.calls = []

    def __call__(self, q, k, scale):
        self.calls.append((q, k, scale))
        return torch.zeros(q.shape[2], dtype=torch.float64)


def tokens_last(x, heads):
    return x.reshape(*x.shape[:2], heads, -1, x.shape[-1]).transpose(-1, -2)


def channels_last(x, heads):
    return x.reshape(*x.shape[:3], heads, -1).permute(0, 1, 3, 2, 4)


def packed(name, parts):
    """(modules to listen to, how to make q and k of their outputs) where one node fires for query and key."""

    def query_and_key(outputs, heads):
        parted = outputs[0].unflatten(2, (parts, -1))
        return tokens_last(parted[:, :, 0], heads), tokens_last(parted[:, :, 1], heads)

    return (name,), query_and_key


def apart(split, *names):
    return names, lambda outputs, heads: tuple(split(output, heads) for output in outputs)


IN_OURS = apart(tokens_last, "query.lif", "key.lif")
IN_PLANE = apart(lambda x, heads: tokens_last(x.flatten(3), heads), "q_lif", "k_lif")
SMALL = {"T": 2, "num_classes": 10}

FOUND = {  # model -> builder, nodes per block, heads per block, where its query and key are
    "ours": (lambda f: f["ours"](), [7, 7], [4, 4], [IN_OURS] * 2),
    "ours, ImageNet form": (
        lambda f: f["ours"](form="imagenet", patch_size=8),
        [7, 7],
        [4, 4],
        [IN_OURS] * 2,
    ),
    "Spikformer": (lambda f: f["jelly"](), [5, 5], [4, 4], [packed("qkv_lif", 3)] * 2),
    "QKFormer": (
        lambda f: QKFormer(**SMALL, embed_dims=32, num_heads=(1, 2, 4), depths=(1, 1, 1)),
        [5, 5, 5],
        [1, 2, 4],
        [packed("qk_lif", 2)] * 2 + [packed("qkv_lif", 3)],
    ),
    "MaxFormer": (
        lambda f: MaxFormer(**SMALL, embed_dims=128, depths=(1, 1, 2), mlp_ratio=1.0),
        [5, 5],
        [2, 2],
        [packed("qkv_lif", 3)] * 2,
    ),
    "MaxFormer, CIFAR": (
        lambda f: MaxFormer(**SMALL, embed_dims=32, depths=(1, 1, 2), cifar=True),
        [5, 5],
        [8, 8],
        [packed("qkv_lif", 3)] * 2,
    ),
    "SpikeDrivenTransformer": (
        lambda f: SpikeDrivenTransformer(**SMALL, embed_dims=32, num_heads=4, depths=2, pooling_stat="0011"),
        [7, 7],
        [4, 4],
        [IN_PLANE] * 2,
    ),
    "official, Linear": (lambda f: Official(conv=False), [7, 7], [4, 4], [apart(channels_last, "q_lif", "k_lif")] * 2),
    "official, Conv1d": (lambda f: Official(conv=True), [7, 7], [4, 4], [apart(tokens_last, "q_lif", "k_lif")] * 2),
}


@pytest.fixture(params=FOUND.values(), ids=FOUND.keys())
def found(request, ours, jelly):
    make, *rest = request.param
    return make({"ours": ours, "jelly": jelly}), *rest


def test_blocks_are_found_with_all_their_nodes(found):
    model, nodes, heads, _ = found
    blocks = find_blocks(model)
    assert [len(block.neurons) for block in blocks] == nodes
    assert [block.heads for block in blocks] == heads
    assert all(set(block.attention) < set(block.neurons) for block in blocks)
    assert all(model.get_submodule(block.name) is not None for block in blocks)


def test_query_and_key_are_those_of_the_model(found, images):
    model, _, heads, sources = found
    outputs = {}
    signal = Recorder()
    with SAGE(model, warmup_steps=0, signal=signal) as sage:
        for block, (names, _) in zip(sage.blocks, sources, strict=True):
            for name in names:
                module = model.get_submodule(f"{block.name}.{name}")
                module.register_forward_hook(lambda m, i, output, key=(block.name, name): outputs.update({key: output}))
        model(images)
    assert len(signal.calls) == len(sources)
    for block, count, (names, query_and_key), (q, k, scale) in zip(
        sage.blocks, heads, sources, signal.calls, strict=True
    ):
        wanted_q, wanted_k = query_and_key([outputs[block.name, name] for name in names], count)
        assert torch.equal(q, wanted_q)
        assert torch.equal(k, wanted_k)
        assert not q.requires_grad
        assert q.any()
        assert scale == getattr(model.get_submodule(block.name), "scale", 0.125)


def test_every_node_of_a_block_gets_a_surrogate_of_its_own(found):
    model = found[0]
    with Fixed(model) as policy:
        nodes = [node for block in policy.blocks for node in block.neurons]
        keepers = [node.slope if isinstance(node, LIFNode) else node.surrogate_function for node in nodes]
        assert len({id(keeper) for keeper in keepers}) == len(nodes)


class Recurrent(nn.Module):
    """A network of the user's in single-step mode: (B, N, C) at a time."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.ModuleList(neuron.LIFNode() for _ in range(2)) for _ in range(2))

    def forward(self, x):
        functional.reset_net(self)
        for step in x:
            for query, key in (self.first, self.second):
                query(3 * step), key(2 * step)


def test_single_step_networks_are_read_step_by_step():
    model, signal = Recurrent(), Recorder()
    blocks = [Block(list(pair), query=pair[0], key=pair[1], heads=2) for pair in (model.first, model.second)]
    x = torch.rand(3, 2, 5, 8, requires_grad=True)
    with SAGE(model, warmup_steps=0, blocks=blocks, signal=signal) as sage:
        model(x)
        sage.step()
    assert len(signal.calls) == 3 * 2
    alone = neuron.LIFNode(step_mode="m")(3 * x)
    assert torch.equal(torch.cat([q for q, _, _ in signal.calls[::2]]), channels_last(alone, 2))


def test_read_is_called_once_per_step():
    model, calls = Recurrent(), []
    q = torch.rand(1, 1, 2, 5, 4).round()

    def read(block):
        calls.append(block.name)
        return q, q

    blocks = [Block(list(pair), heads=2, read=read, name=name) for name, pair in model.named_children()]
    with SAGE(model, warmup_steps=0, blocks=blocks) as sage:
        model(torch.rand(3, 1, 5, 8, requires_grad=True))
        sage.step()
        assert calls == ["first", "second"]
        assert sage.dispersion[0] == sage.dispersion[1] > 0


def nodes_as_they_are(model):
    return [
        (node.surrogate_function, getattr(node, "slope", None), len(node._forward_hooks)) for node in nodes_of(model)
    ]


def described(model, **changes):
    """Our Spikformer's first block in the user's words, with a mistake."""
    attention = model.blocks[0].attention
    fields = {"neurons": nodes_of(attention), "query": attention.query.lif, "key": attention.key.lif, "heads": 4}
    return Block(**(fields | {"layout": "TBCN"} | changes))


@pytest.mark.parametrize(
    ("attach", "cure"),
    [
        (
            lambda model: SAGE(model.stem, warmup_steps=0),
            r"no spiking self-attention found in Stem; pass blocks=\[Block",
        ),
        (
            lambda model: Fixed(model, blocks=[described(model, neurons=[nn.ReLU()])]),
            "use a SpikingJelly node or sage_snn",
        ),
        (lambda model: Fixed(model, blocks=[described(model), described(model)]), "give every Block its own neurons"),
        (lambda model: Fixed(model, blocks=[described(model, neurons=[])]), r"pass Block\(neurons="),
        (lambda model: described(model, query=None), "query= and key= modules, or read="),
        (lambda model: described(model, heads=0), "heads must be at least 1"),
        (lambda model: described(model, layout="NC"), "layout must be 'TBNC', 'TBCN' or 'TBCHW'"),
        (lambda model: SAGE(model, warmup_steps=0, neurons="mlp"), "neurons must be 'block', 'attention' or 'all'"),
    ],
)
def test_a_mistake_names_its_cure_and_leaves_the_model_as_it_was(ours, attach, cure):
    model = ours()
    before = nodes_as_they_are(model)
    with pytest.raises(ValueError, match=cure):
        attach(model)
    assert nodes_as_they_are(model) == before
    Fixed(model).remove()  # and free for a policy


def test_heads_that_do_not_divide_the_width_name_the_cure(ours, images):
    model = ours()
    before = nodes_as_they_are(model)
    blocks = [described(model, heads=5, name="first"), find_blocks(model)[1]]
    SAGE(model, warmup_steps=0, blocks=blocks)  # whose width only a forward pass shows
    with pytest.raises(ValueError, match=r"block first: .*: 5 heads do not divide 32 .* Block\(heads="):
        model(images)
    assert nodes_as_they_are(model) == before
    model(images)
    Fixed(model).remove()


def test_heads_that_do_not_divide_the_width_are_refused_at_attach(found):
    model = found[0]
    attention = model.get_submodule(find_blocks(model)[-1].name)
    setattr(attention, "heads" if hasattr(attention, "heads") else "num_heads", 7)
    before = nodes_as_they_are(model)
    with pytest.raises(ValueError, match=r"7 heads do not divide its \d+ channels; build the model with heads"):
        SAGE(model, warmup_steps=0)
    assert nodes_as_they_are(model) == before


def test_a_scale_in_a_tensor_is_read(jelly):
    model = jelly()
    for module in model.modules():
        if hasattr(module, "scale"):
            module.scale = torch.tensor(0.5)
    assert [block.scale for block in find_blocks(model)] == [0.5, 0.5]


def test_query_and_key_are_modules_not_names(ours):
    nodes = nodes_of(ours().blocks[0])
    with pytest.raises(ValueError, match="query must be a module whose output is read, not 'q_lif'"):
        Block(nodes, query="q_lif", key="k_lif")
