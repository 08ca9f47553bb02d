"""What the site needs besides Markdown: equations as MathML, and links to scripts that lie beside the docs."""

import html
import re

from latex2mathml.converter import convert

# As pymdownx.arithmatex writes them with `generic: true`.
MATHS = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FENCE = re.compile(r"^(```\w+) [^\n]*$", re.MULTILINE)  # words after the language are for the tests
# In the repository, not on the site: files of runs, SECURITY.md.
BESIDE = re.compile(r"\[([^\]]+)\]\((?:runs|\.\./[A-Z]+\.md)\)")
EXAMPLE = re.compile(r"\]\(\.\./(?:\.\./)?examples/([\w.]+)\)")


def on_page_markdown(markdown, *, page, **_):
    """Scripts in examples/ are shown on a page of the site."""
    up = "../" * page.file.src_uri.count("/")
    markdown = BESIDE.sub(r"\1", FENCE.sub(r"\1", markdown))
    return EXAMPLE.sub(lambda link: f"]({up}examples.md#{link[1].replace('.', '')})", markdown)


def on_page_content(content, **_):
    """Browsers draw MathML themselves: no script, and nothing to fetch."""
    return MATHS.sub(_mathml, content)


def _mathml(found):
    drawn = convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline")
    return f"<div>{drawn}</div>" if found[2] == "[" else drawn
