"""Query and key are read as they lie, or refused: nothing is taken for what it is not."""

import pytest
import torch
from spikingjelly.activation_based import functional, neuron
from torch import Tensor, nn

from sage_snn import SAGE, HeadEntropy, find_blocks
from sage_snn.control import LivingHeads
from sage_snn.signals import head_entropy

TIMES, BATCH, WIDTH, SIDE, HEADS = 2, 3, 8, 4, 2


class ConvAttention(nn.Module):
    """Query and key of (T, B, C, H, W) by 1x1 convolutions, in the ways that repositories write them."""

    def __init__(self, sequence: bool = False, dvs: bool = False, transposed: bool = False) -> None:
        super().__init__()
        self.num_heads, self.dvs, self.transposed, self.order = HEADS, dvs, transposed, "qk"
        self.pool = nn.MaxPool3d((1, 3, 3), stride=1, padding=(0, 1, 1))
        for part in "qkv":
            conv = nn.Conv2d(WIDTH, WIDTH, 1)
            setattr(self, f"{part}_conv", nn.Sequential(conv, nn.BatchNorm2d(WIDTH)) if sequence else conv)
            setattr(self, f"{part}_lif", neuron.LIFNode(step_mode="m", v_threshold=0.1))

    def spikes(self, part: str, x: Tensor) -> Tensor:
        y = getattr(self, f"{part}_conv")(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return getattr(self, f"{part}_lif")(y.transpose(2, 4).contiguous() if self.transposed else y)

    def forward(self, x: Tensor) -> Tensor:
        spikes = {part: self.spikes(part, x) for part in self.order}
        self.seen = [spikes["q"], spikes["k"]]
        if self.dvs:
            self.seen[1] = self.pool(self.seen[1])
        mixed = self.seen[0] * self.seen[1] + self.spikes("v", x)
        return x + (mixed.transpose(2, 4) if self.transposed else mixed)


class Network(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": ConvAttention(**options)}) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block["attn"](x)
        return x


def events(side: int = SIDE) -> Tensor:
    return torch.randn(TIMES, BATCH, WIDTH, side, side, generator=torch.Generator().manual_seed(0))


def heads_of(spikes: Tensor) -> Tensor:
    """(T, B, C, H, W) -> (T, B, heads, N, K), written out."""
    return spikes.flatten(3).unflatten(2, (HEADS, -1)).permute(0, 1, 2, 4, 3)


@pytest.mark.parametrize("options", [{}, {"sequence": True}, {"dvs": True}], ids=["conv", "sequence", "pooled key"])
def test_what_is_read_is_what_the_network_uses(options):
    torch.manual_seed(0)
    model = Network(**options)
    with SAGE(model, warmup_steps=0) as sage:
        model(events()).sum().backward()
        sage.step()
        for block, readings in zip(model.blocks, sage.head_entropy, strict=True):
            q, k = (heads_of(spikes.detach()) for spikes in block["attn"].seen)
            assert readings.tolist() == pytest.approx(head_entropy(q, k).tolist(), abs=1e-9)
    assert [block.source.layout for block in find_blocks(model)] == ["TBCHW"] * 2


def test_channels_in_the_place_of_tokens_are_refused_and_the_model_is_free_again():
    model = Network(transposed=True)
    SAGE(model, warmup_steps=0)
    with pytest.raises(ValueError, match=r"read as TBCHW has 4 channels, its query has 8: pass Block\(layout"):
        model(events())
    functional.reset_net(model)
    model(events())
    SAGE(model, warmup_steps=0).remove()


def test_an_output_with_too_many_axes_says_so_and_names_the_layout(ours, images):
    model = ours()
    block = find_blocks(model)[0]
    with pytest.raises(ValueError, match=r"\(2, 4, 8, 3, 3\) read as TBCN has 5 axes, not 4 .*layout='TBCHW'"):
        block.source.split(torch.zeros(2, 4, 8, 3, 3))


@pytest.mark.parametrize("order", ["qk", "kq"])
def test_a_pass_that_broke_off_leaves_nothing_behind(order):
    torch.manual_seed(0)
    model = Network()
    first = model.blocks[0]["attn"]
    with SAGE(model, warmup_steps=0) as sage:
        handle = first.k_conv.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broke off")))
        with pytest.raises(RuntimeError, match="broke off"):
            model(events() * -3)
        handle.remove()
        functional.reset_net(model)
        first.order = order  # of the next pass: the key first must not be paired with the query of the broken one
        model(events()).sum().backward()
        sage.step()
        q, k = (heads_of(spikes.detach()) for spikes in first.seen)
        assert sage.head_entropy[0].tolist() == pytest.approx(head_entropy(q, k).tolist(), abs=1e-9)


def test_micro_batches_count_by_the_images_that_were_read(ours, images):
    signal, model = HeadEntropy(images=2), ours()
    with SAGE(model, warmup_steps=0, signal=signal) as sage:
        readings = []
        for batch in (images, images[:2], images[:1]):
            model(batch)
            sage.step()
            readings.append(torch.stack(sage.head_entropy))
        for batch in (images, images[:2], images[:1]):
            model(batch)
        sage.step()
        expected = (2 * readings[0] + 2 * readings[1] + readings[2]) / 5
        assert torch.stack(sage.head_entropy).flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-9)


def test_a_head_is_dead_when_its_query_or_its_key_never_fires():
    heads = LivingHeads(3)
    assert heads.dead == []
    q, k = torch.ones(1, 1, 3, 2, 2), torch.ones(1, 1, 3, 2, 2)
    q[:, :, 0], k[:, :, 1] = 0, 0
    heads.see(q, k)
    assert heads.dead == [0, 1]
    heads.see(k, q)  # now key fires in head 1 and query in head 0, but the other of each was seen too
    assert heads.dead == []
