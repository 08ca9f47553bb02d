"""Machine code for devices that are not here; in a process of its own, which may have no interpreter."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# One variant of every kernel, of every dtype if asked for; benchmarks/compile_gpu.py takes them all.
ROWS = """
import json, sys
from sage_snn.kernels.gpu.compiled import compiled, variants
target, each_dtype = sys.argv[1], len(sys.argv) > 2
chosen = {}
for variant in variants():
    dtype = next(iter(variant.signature.values())) if each_dtype else ""
    chosen.setdefault((variant.kernel.__name__, dtype), variant)
for row in compiled(target, chosen.values()):
    print(json.dumps([row.variant.name, row.variant.forward, row.registers, row.problems, row.arithmetic]))
"""
# Reads every other value, divides as devices like to, and fuses.
UNLIKE = """
import json
import triton, triton.language as tl
from sage_snn.kernels.gpu.compiled import _row
from sage_snn.kernels.gpu.variants import Variant

@triton.jit
def unlike(x, y, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + 2 * places, mask=places < count)
    tl.store(y + places, tl.fma(value, value, 1.0) / (value + 3), mask=places < count)

signature = {"x": "*fp32", "y": "*fp32", "count": "i32"}
print(json.dumps(_row(Variant("unlike", unlike, signature, {"BLOCK": 1024}, forward=True), "sm_80").problems))
"""


@pytest.fixture
def run(tmp_path):
    """Run code with Triton's compiler and a cache of its own; what it printed, line by line."""
    own = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "SAGE_SNN_KERNELS")}

    def ran(code, *arguments):
        (tmp_path / "code.py").write_text(code)  # Triton reads the source of a kernel
        done = subprocess.run(
            [sys.executable, "-W", "error", "code.py", *arguments],
            cwd=tmp_path,
            env=own | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ran


@pytest.mark.parametrize("arguments", [("sm_75",), ("sm_90", "each dtype"), ("gfx942",)], ids=lambda them: them[0])
def test_every_kernel_compiles_without_spills_reads_wide_and_rounds_as_its_twin(run, arguments):
    rows = run(ROWS, *arguments)
    assert len(rows) > 5
    assert all(registers > 0 for _, _, registers, *_ in rows)
    assert {name: problems for name, _, _, problems, _ in rows if problems} == {}
    forward = [arithmetic for _, is_forward, _, _, arithmetic in rows if is_forward]
    if forward and arguments[0] != "gfx942":
        assert any(arithmetic.get("div.rn.f32") for arithmetic in forward)


def test_a_kernel_that_rounds_otherwise_or_reads_less_is_told(run):
    ((narrow, unlike),) = run(UNLIKE)
    assert narrow == "0% of what it loads comes 16 bytes at a time"
    assert unlike == "rounds unlike the twin: div.full.f32, fma.rn.f32"


@pytest.mark.parametrize(
    ("setting", "target", "cure"), [("", "sm_1", "choose from sm_75"), ("interpret", "sm_80", "unset SAGE_SNN_KERNELS")]
)
def test_what_cannot_be_compiled_names_the_cure(setting, target, cure):
    own = os.environ | {"SAGE_SNN_KERNELS": setting, "TRITON_INTERPRET": "1" if setting else "0"}
    done = subprocess.run([sys.executable, "-c", ROWS, target], env=own, capture_output=True, text=True)
    assert cure in done.stderr
