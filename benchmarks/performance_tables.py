"""Tables of docs/performance.md from what `sage-snn bench --out` wrote on machines of different kinds, side by side.

python benchmarks/performance_tables.py "AVX-512=docs/performance.json" "AVX2=docs/performance-avx2.json"
"""

import json
import sys
from itertools import groupby
from pathlib import Path

BETTER = ("SpikingJelly", "SpikingJelly, channels last")


def rows_of(path: str) -> dict[tuple[str, str, str], dict]:
    return {(row["measure"], row["size"], row["contestant"]): row for row in json.loads(Path(path).read_text())["rows"]}


def value(row: dict) -> str:
    scale = 1e3 if row["unit"] == "s" else 1
    return f"{row['minimum'] * scale:.3g}" if abs(row["minimum"] * scale) < 1000 else f"{row['minimum'] * scale:.0f}"


def ratio(row: dict, kind: dict[tuple[str, str, str], dict]) -> str:
    """To the better of SpikingJelly's layouts where there are two; what a row says of itself where it has no ratio."""
    peers = [kind[row["measure"], row["size"], name] for name in BETTER if (row["measure"], row["size"], name) in kind]
    if row["ratio"] is None or row["unit"] != "s" or len(peers) < 2:
        return row["note"].replace(" of the step", "") if row["ratio"] is None else f"{row['ratio']:.2f}"
    return f"{min(peer['minimum'] for peer in peers) / row['minimum']:.2f}"


def main() -> None:
    """A table per measurement: minima, and ratios of them to SpikingJelly's."""
    kinds = {name: rows_of(path) for name, _, path in (given.partition("=") for given in sys.argv[1:])}
    first = next(iter(kinds.values()))
    for measure, keys in groupby(first, key=lambda key: key[0]):
        unit = next(iter(row["unit"] for key, row in first.items() if key[0] == measure))
        columns = [part for name in kinds for part in (f"{'ms' if unit == 's' else unit}, {name}", f"times, {name}")]
        print(f"\n## {measure}\n\n| size | contestant | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
        for key in keys:
            cells = [(value(k[key]), ratio(k[key], k)) if key in k else ("", "") for k in kinds.values()]
            print(f"| {key[1]} | {key[2]} | {' | '.join(part for cell in cells for part in cell)} |")


if __name__ == "__main__":
    main()
