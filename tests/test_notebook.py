import io

import pytest
import torch
from rich.console import Console

from sage_snn import SAGE, Block, Fixed, Learnable, LIFNode, check
from sage_snn.checkup import Part, Report
from sage_snn.notebook import ShownInNotebooks, html_table, is_live


def test_text_in_a_table_does_nothing():
    shown = html_table(["<b>"], [["<script>alert(1)</script>", 'a"&b']], "<i>", "<u>\x1b[31m")
    assert "<script>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "a&quot;&amp;b" in shown
    assert "<th>&lt;b&gt;</th>" in shown
    assert r"&lt;u&gt;\x1b[31m" in shown


@pytest.mark.parametrize("build", [lambda m: Fixed(m, 3.5), Learnable, lambda m: SAGE(m, warmup_steps=1)])
def test_a_policy_is_a_table_with_a_row_per_block(ours, build):
    shown = build(ours())._repr_html_()
    assert shown.count("<tr>") == 1 + 2
    assert "<td>blocks.0.attention</td><td>7</td>" in shown
    assert "<details>" in shown


def test_the_numbers_of_a_policy_are_in_its_table(ours):
    policy = Fixed(ours(), 3.5)
    assert policy._repr_html_().count("<td>3.5</td>") == 2


def test_a_block_cannot_inject_into_the_notebook():
    node = LIFNode(step_mode="m")
    block = Block([node], query=node, key=node, heads=2, name="<img src=x onerror=alert(1)>")
    shown = Fixed(torch.nn.Sequential(node), blocks=[block])._repr_html_()
    assert "<img" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_a_check_is_a_table_with_its_verdict(ours, images):
    report = check(ours(), images, torch.tensor([0, 1, 2, 3]))
    shown = report._repr_html_()
    assert shown.count("<tr>") == 1 + len(report.parts)
    assert str(report).splitlines()[-1] in shown
    bad = Report(1.0, [Part("<b>", 1, 0.1, 0.0, (1.0, 1.0))])
    assert "<b>" not in bad._repr_html_()


def test_what_rich_prints_is_shown_as_text():
    class Thing(ShownInNotebooks):
        def __rich__(self):
            return "[bold]<&>"

    assert Thing()._repr_html_() == "<pre>&lt;&amp;&gt;\n</pre>"


def test_bars_move_on_terminals_and_in_notebooks_with_widgets(monkeypatch):
    def console(**kind):
        return Console(file=io.StringIO(), **kind)

    assert is_live(console(force_terminal=True))
    assert not is_live(console())
    assert is_live(console(force_jupyter=True))
    monkeypatch.setattr("sage_snn.notebook.find_spec", lambda name: None)
    assert not is_live(console(force_jupyter=True))
