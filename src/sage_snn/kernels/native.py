"""The C++ kernels: compiled with the machine's own compiler on first use, cached, loaded by ctypes.

`SAGE_SNN_KERNELS=off` in the environment, no compiler, or one that fails, and the pure-torch twins run instead;
`status()` says which. `SAGE_SNN_MARCH=x86-64-v3` (any `-march` of the compiler) compiles for that processor in place
of this one. Nothing happens on import.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from . import cache

SOURCES = Path(__file__).parent / "cpp"
# No -ffast-math, and no contraction of a * b + c: backward recomputes what forward rounded, and the twins must agree.
FLAGS = shlex.split(
    "-std=c++17 -O3 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi"
)
TUNING = (["-march=native"], ["-mcpu=native"], list[str]())  # the first that the compiler accepts
# Left to itself GCC makes vectors of 256 bits for most processors that have 512. Loops over whole tiles fill the wider
# ones; shorter loops, elsewhere, would be left with a rest.
WIDE = (["-mprefer-vector-width=512"], list[str]())
TILED = ("lif.cpp", "norm.cpp", "norm_lif.cpp")
OPENMP = (["-fopenmp"], list[str]())
NO_COMPILER = "no compiler found: install g++ or clang++, or set CXX"
INSTEAD = "Everything runs in plain torch until then, which is right but slower; SAGE_SNN_KERNELS=off is silent."
SECONDS = 300  # after which a compiler is taken to hang


@dataclass(frozen=True)
class _Loaded:
    library: ctypes.CDLL | None
    status: str
    is_off: bool = False


_loaded: _Loaded | None = None
_lock = threading.Lock()


def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None if the pure-torch twins have to run."""
    return _load().library


def status() -> str:
    """One line for people: how the kernels were compiled, or why they are not used."""
    return _load().status


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def is_available() -> bool:
    """Whether `library()` is there; a constant of a compiled graph."""
    return library() is not None


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def is_switched_off() -> bool:
    """Did somebody ask for the twins, on every device?"""
    return _loaded.is_off if _loaded is not None else _is_off()


@contextmanager
def switched_off() -> Generator[None]:
    """Inside, the pure-torch twins run."""
    global _loaded
    before, _loaded = _loaded, _Loaded(None, "switched off", is_off=True)
    try:
        yield
    finally:
        _loaded = before


def forget() -> None:
    """Load anew on the next use: the environment has changed."""
    global _loaded
    _loaded = None


def _load() -> _Loaded:
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _find()
    return _loaded


def _find() -> _Loaded:
    if _is_off():
        return _Loaded(None, "off by SAGE_SNN_KERNELS", is_off=True)
    failures: list[str] = []
    for command in _compilers():
        try:
            library = _from_cache_or_compiled(command)
            return _Loaded(library, _describe(library))
        except (OSError, subprocess.SubprocessError, _BuildError) as error:
            failures.append(f"{shlex.join(command)}: {error}")
    if (library := _compiled_before()) is not None:
        return _Loaded(library, _describe(library))
    reason = f"compiling failed: {'; '.join(failures)}" if failures else NO_COMPILER
    print(f"sage-snn: {reason}. {INSTEAD}", file=sys.stderr, flush=True)
    return _Loaded(None, reason)


def _is_off() -> bool:
    return os.environ.get("SAGE_SNN_KERNELS", "").lower() in ("off", "0", "false", "no")


def _tuning() -> tuple[list[str], ...]:
    asked = os.environ.get("SAGE_SNN_MARCH")
    return ([f"-march={asked}"], []) if asked else TUNING


class _BuildError(RuntimeError):
    """What the compiler said."""


def _compilers() -> list[list[str]]:
    wanted = [shlex.split(os.environ.get("CXX", "")), ["c++"], ["g++"], ["clang++"]]
    paths: list[list[str]] = []
    for command in wanted:
        path = shutil.which(command[0]) if command else None
        # c++ is usually a link to one of the others: do not fail twice for the same reason.
        if path and os.path.realpath(path) not in [os.path.realpath(known[0]) for known in paths]:
            paths.append([path, *command[1:]])
    return paths


def _from_cache_or_compiled(command: list[str]) -> ctypes.CDLL:
    version = _run([*command, "--version"])
    name = f"kernels-{_key()}-{hashlib.sha256(repr((command, version)).encode()).hexdigest()[:8]}.so"
    try:
        with cache.opened() as kept:
            if (library := kept.load(name)) is not None:
                return library
            with kept.only_one_process(SECONDS):
                return kept.load(name) or _compile(command, version, name, kept)
    except OSError as problem:  # such as a home that cannot be written, or that is not ours
        print(f"sage-snn: its kernels are not kept for the next time: {problem}", file=sys.stderr, flush=True)
        return _compile(command, version, name)


def _compiled_before() -> ctypes.CDLL | None:
    """A library for these sources and this processor, of whatever compiler."""
    try:
        with cache.opened() as kept:
            libraries = (kept.load(name) for name in kept.names(f"kernels-{_key()}-"))
            return next((library for library in libraries if library is not None), None)
    except OSError:
        return None


def _key() -> str:
    key = hashlib.sha256()
    for part in (*_sources(), [*FLAGS, *map(str, (*_tuning(), *OPENMP, *WIDE, TILED))], _processor()):
        key.update(part.read_bytes() if isinstance(part, Path) else repr(part).encode())
    return key.hexdigest()[:20]


def _compile(command: list[str], version: str, name: str, kept: cache.Cache | None = None) -> ctypes.CDLL:
    """Built in a folder that nobody else can enter, then moved to the cache; without one, for this process only."""
    where = "this time" if kept is None else f"once ({kept.path})"
    print(f"sage-snn: compiling its kernels with {command[0]}, {where} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="sage-snn-") as folder:
        output = Path(folder) / name
        _build(command, version, Path(folder), output)
        if kept is not None:
            kept.keep(name, output)
        library = kept and kept.load(name)
        return library or ctypes.CDLL(str(output))


def _build(command: list[str], version: str, folder: Path, output: Path) -> None:
    tuning = _first_accepted(command, _tuning(), "int x;", folder)
    if (asked := os.environ.get("SAGE_SNN_MARCH")) and not tuning:
        raise _BuildError(f"it refuses -march={asked}; set SAGE_SNN_MARCH to a processor that it knows, or not at all")
    openmp = _first_accepted(command, OPENMP, "#include <omp.h>\nint x = omp_get_max_threads();", folder)
    words = version.splitlines()[0] if version else command[0]
    build = f"compiled with {words}, {'OpenMP' if openmp else 'one thread (no OpenMP)'}, {' '.join(tuning) or '-O3'}"
    source, text = folder / "build.cpp", build.replace("\\", "").replace('"', "")
    source.write_text(
        f'extern "C" __attribute__((visibility("default"))) const char* sage_build() {{ return "{text}"; }}\n'
    )
    units = [path for path in _sources() if path.suffix == ".cpp"]
    objects = [str(folder / f"{unit.stem}.o") for unit in (*units, source)]
    flags, wide = [*FLAGS, *tuning, *openmp], _first_accepted(command, WIDE, "int x;", folder)
    own = [[*flags, *(wide if unit.name in TILED else [])] for unit in (*units, source)]
    made = zip((*units, source), own, objects, strict=True)
    _run_all([[*command, *options, "-c", str(unit), "-o", o] for unit, options, o in made])
    _run([*command, *flags, "-shared", *objects, "-o", str(output)])


def _first_accepted(command: list[str], choices: tuple[list[str], ...], code: str, folder: Path) -> list[str]:
    """The first flags with which `code` becomes a shared library."""
    source, output = folder / "probe.cpp", str(folder / "probe.so")
    source.write_text(code + "\n")
    for flags in choices[:-1]:
        try:
            _run([*command, *FLAGS, *flags, "-shared", str(source), "-o", output])
            return flags
        except _BuildError:
            continue
    return choices[-1]


def _run(command: list[str]) -> str:
    return _run_all([command])[0]


def _run_all(commands: list[list[str]]) -> list[str]:
    """Run them side by side; what each printed, or an error with the end of what the failing one said."""
    printed: list[str] = []
    with ExitStack() as stack:
        running: list[subprocess.Popen[str]] = []
        for command in commands:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            running.append(stack.enter_context(process))
            stack.callback(process.kill)  # the others of one that failed; nothing to one that has ended
        for process in running:
            output, errors = process.communicate(timeout=SECONDS)
            if process.returncode:
                raise _BuildError((errors or output or f"exit code {process.returncode}").strip()[-500:])
            printed.append(output)
    return printed


def _sources() -> list[Path]:
    return sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".h"))


def _processor() -> str:
    """What -march=native depends on: home directories are shared between unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kinds = ("model name", "flags", "Features", "CPU part", "CPU implementer")
        return repr(sorted({line for line in lines if line.startswith(kinds)}))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _describe(library: ctypes.CDLL) -> str:
    library.sage_build.restype = ctypes.c_char_p
    return str(library.sage_build().decode())
