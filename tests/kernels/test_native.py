import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sage_snn.kernels import native

USE = """
import torch
from sage_snn.kernels import native
from sage_snn.kernels.lif import Membrane, lif
native.FLAGS = [flag.replace("-O3", "-O0") for flag in native.FLAGS]
spikes, _ = lif(torch.full((4, 9), 2.0), torch.zeros(9), torch.tensor(4.0), Membrane())
print(native.status()); print(native.library() is not None); print(spikes.sum().item())
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and the loader as at the start of a process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SAGE_SNN_KERNELS", raising=False)
    monkeypatch.setattr(native, "FLAGS", [flag.replace("-O3", "-O0") for flag in native.FLAGS])  # in half the time
    native.forget()
    yield tmp_path / "sage_snn"
    monkeypatch.undo()
    native.forget()


def process(code, **environment):
    environment = os.environ | {"PYTHONWARNINGS": "ignore"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_status_says_how_it_was_compiled():
    assert native.status().startswith("compiled with ")
    assert ", OpenMP" in native.status()


def test_import_neither_compiles_nor_loads(tmp_path):
    code = "import sage_snn, sage_snn.neurons, sage_snn.kernels.norm_lif as n; from sage_snn.kernels import native\n"
    done = process(code + "print(native._loaded)", XDG_CACHE_HOME=str(tmp_path))
    assert done.communicate()[0].strip() == "None"
    assert not list(tmp_path.iterdir())


def test_off_by_the_environment(fresh, monkeypatch, capfd):
    monkeypatch.setenv("SAGE_SNN_KERNELS", "off")
    assert native.library() is None
    assert native.status() == "off by SAGE_SNN_KERNELS"
    assert capfd.readouterr().err == ""


def test_without_a_compiler_the_twin_runs(fresh, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert native.library() is None
    assert native.status() == "no compiler found: install g++ or clang++, or set CXX"


def test_who_has_no_compiler_is_told_once_with_the_cure(fresh, monkeypatch, capfd):
    monkeypatch.setattr(native, "_compilers", list)
    assert [native.library(), native.library()] == [None, None]
    assert capfd.readouterr().err == (
        "sage-snn: no compiler found: install g++ or clang++, or set CXX. Everything runs in plain torch until then, "
        "which is right but slower; SAGE_SNN_KERNELS=off is silent.\n"
    )


def test_a_broken_compiler_is_named_with_what_it_said(fresh, monkeypatch, tmp_path):
    broken = script(
        tmp_path / "broken", 'test "$1" = --version && echo broken 1.0 && exit; echo no licence >&2; exit 3'
    )
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CXX", broken)
    assert native.library() is None
    assert native.status() == f"compiling failed: {broken}: no licence"
    assert not list(fresh.glob("*.so"))


def test_a_broken_cxx_falls_back_to_the_next_compiler(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", script(tmp_path / "broken", "exit 1"))
    assert native.library() is not None


def test_without_openmp_and_native_tuning_it_still_compiles(fresh, monkeypatch, tmp_path):
    body = f'case "$*" in *-fopenmp*|*=native*) echo unknown >&2; exit 1;; esac; exec {shutil.which("c++")} "$@"'
    monkeypatch.setenv("CXX", script(tmp_path / "plain", body))
    assert native.library() is not None
    assert "one thread (no OpenMP), -O3" in native.status()
    v, x = torch.zeros(70), torch.randn(4, 70)
    assert native.library().sage_lif_f32 is not None
    from sage_snn.kernels.lif import LIF, Membrane, lif

    expected = LIF.apply(x, v, torch.tensor(4.0), Membrane(), "Sigmoid")[0]
    assert torch.equal(lif(x, v, torch.tensor(4.0), Membrane())[0], expected)


def test_processes_that_start_together_compile_once(tmp_path):
    running = [process(USE, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    outputs = [p.communicate() for p in running]
    assert [p.returncode for p in running] == [0, 0]
    assert all("compiled with" in out and "True" in out and "36.0" in out for out, _ in outputs)
    assert sum("compiling its kernels" in err for _, err in outputs) == 1
    assert len(list((tmp_path / "sage_snn").glob("*.so"))) == 1


def test_the_cache_is_used_and_a_damaged_one_is_repaired(fresh, capfd, monkeypatch):
    names = []
    with monkeypatch.context() as patch:
        patch.setattr(native, "_compile", lambda command, version, name, kept: names.append(name))
        native._from_cache_or_compiled(native._compilers()[0])
    (fresh / names[0]).write_bytes(b"half a file")
    assert native.library() is not None
    assert capfd.readouterr().err.count("compiling its kernels") == 1
    native.forget()
    assert native.library() is not None
    assert capfd.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_no_obstacle(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.library() is not None


def test_another_processor_gets_another_library(fresh, monkeypatch):
    names = set()
    for processor in ("one", "another"):
        monkeypatch.setattr(native, "_processor", lambda p=processor: p)
        monkeypatch.setattr(native, "_compile", lambda command, version, name, kept: names.add(name))
        native._from_cache_or_compiled(native._compilers()[0])
    assert len(names) == 2


def test_a_build_for_another_processor_can_be_forced_and_has_a_library_of_its_own(fresh, monkeypatch):
    ordinary = native._key()
    monkeypatch.setenv("SAGE_SNN_MARCH", "x86-64-v3")
    assert native._key() != ordinary
    assert native.status().endswith("-march=x86-64-v3")
    monkeypatch.setenv("SAGE_SNN_MARCH", "no-such-processor")
    native.forget()
    assert native.library() is None
    assert "it refuses -march=no-such-processor; set SAGE_SNN_MARCH" in native.status()


@pytest.mark.parametrize("knows", [True, False])
def test_only_loops_over_whole_tiles_get_the_widest_vectors(fresh, monkeypatch, tmp_path, knows):
    """A compiler that does not know the flag does without."""
    commands = []

    def recorded(asked):
        if not knows and any("-mprefer-vector-width=512" in command for command in asked):
            raise native._BuildError("unknown option")
        commands.extend(asked)
        return [""] * len(asked)

    monkeypatch.setattr(native, "_run_all", recorded)
    native._build(["c++"], "", tmp_path, tmp_path / "library.so")
    compiled = {Path(c[c.index("-c") + 1]).name: "-mprefer-vector-width=512" in c for c in commands if "-c" in c}
    assert {name for name, is_wide in compiled.items() if is_wide} == (set(native.TILED) if knows else set())
    assert compiled.keys() > set(native.TILED)


def refuse(*args, **options):
    raise PermissionError("read-only")


def test_a_library_that_is_there_needs_neither_compiler_nor_a_cache_to_write_to(fresh, monkeypatch, capfd):
    assert native.library() is not None
    status = native.status()
    capfd.readouterr()
    for hindrance in (("os.mkdir", refuse), ("sage_snn.kernels.native._compilers", list)):
        with monkeypatch.context() as patch:
            patch.setattr(*hindrance)
            native.forget()
            assert native.status() == status
            assert capfd.readouterr().err == ""


def test_a_home_that_nobody_knows_is_no_obstacle(fresh, monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(native.Path, "home", unknown)
    assert native.library() is not None
