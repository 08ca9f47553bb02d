"""What is made of a file's bytes, and of what is typed, where somebody means harm or a disk is damaged."""

import random


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple:
        return open, ("owned", "w")


WORDS = [
    *("null", "~", "true", "-1", "0", "1e999", ".nan", "9" * 5000, "2024-99-99", "[]", "{}", "[[", "*a", "&a [*a]"),
    *("!!python/name:os.system", "<<: *a", "../../x", "/dev/zero", "\x00", "\x1b[2J", "[/red]", "<script>", "\udcff"),
    *("é", "\u202e", "'", '"', "|", ">", "---", "...", "%YAML 9.9", "\t", "\r\n", "{a: {a: {a: 1}}}", "x" * 3000),
]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A few changes of bits, bytes, words, pieces and lines."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at, to = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
        lines = bytes(data).split(b"\n")
        kind = draw.randrange(9)
        if kind == 0 and data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = draw.choice(WORDS).encode(errors="surrogateescape")
        elif kind == 2:
            data[at : min(to, at + 40)] = b""
        elif kind == 3:
            data[at : min(to, at + 8)] = draw.choice(WORDS).encode(errors="surrogateescape")
        elif kind == 4:
            data = data[:at]
        elif kind == 5:
            data[at:at] = data[at : min(to, at + 200)]
        elif kind == 6:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 7:  # another value for a key
            n = draw.randrange(len(lines))
            lines[n] = lines[n].partition(b":")[0] + b": " + draw.choice(WORDS).encode(errors="surrogateescape")
            data = bytearray(b"\n".join(lines))
        else:
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
            data = bytearray(b"\n".join(lines))
    return bytes(data)
