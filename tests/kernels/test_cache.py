"""The cache of compiled kernels: what another user planted, or a crash left, is neither run nor in the way."""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from sage_snn.kernels import cache, native

SOMEBODY = 54321
CODE = 'extern "C" __attribute__((visibility("default"))) int sage_answer() { return 42; }\n'
EVIL = '#include <cstdio>\n__attribute__((constructor)) static void run() { std::fclose(std::fopen("%s", "w")); }\n'


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, the loader as at the start of a process, and sources that compile in no time."""
    (tmp_path / "cpp").mkdir()
    # Other code in every test, and so another name: a library of the same name would not be loaded twice.
    (tmp_path / "cpp" / "answer.cpp").write_text(f"// {tmp_path}\n{CODE}")
    monkeypatch.setattr(native, "SOURCES", tmp_path / "cpp")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SAGE_SNN_KERNELS", raising=False)
    native.forget()
    yield tmp_path / "cache" / "sage_snn"
    monkeypatch.undo()
    native.forget()


@pytest.fixture
def planted(fresh, tmp_path, monkeypatch):
    """A library that tells when its code runs, under the name and with the digest of the right one."""
    name = wanted_name(monkeypatch)
    (tmp_path / "evil.cpp").write_text(CODE + EVIL % (tmp_path / "owned"))
    command = [*native._compilers()[0], "-shared", "-fPIC", str(tmp_path / "evil.cpp"), "-o", str(tmp_path / name)]
    subprocess.run(command, check=True)
    with cache.opened() as kept:
        kept.keep(name, tmp_path / name)
    yield fresh
    assert not (tmp_path / "owned").exists()


def wanted_name(monkeypatch):
    names = []
    with monkeypatch.context() as patch:
        patch.setattr(native, "_compile", lambda command, version, name, kept: names.append(name))
        native._from_cache_or_compiled(native._compilers()[0])
    return names[0]


def library_in(folder):
    (path,) = folder.glob("*.so")
    return path


def give_away(monkeypatch, *paths):
    """To another user; only root can, and for anybody else the reader becomes another user."""
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    for path in paths if os.geteuid() == 0 else ():
        os.chown(path, SOMEBODY, -1)


def test_the_library_of_another_users_folder_is_not_run(planted, monkeypatch, capfd):
    give_away(monkeypatch, planted, *planted.iterdir())
    assert native.library().sage_answer() == 42
    told = capfd.readouterr().err
    assert "belongs to another user" in told
    assert "set XDG_CACHE_HOME to a folder of your own" in told


def test_the_library_that_another_user_put_into_our_folder_is_not_run(planted, monkeypatch):
    planted.chmod(0o777)
    give_away(monkeypatch, *planted.iterdir())
    assert native.library().sage_answer() == 42
    if os.geteuid() == 0:
        assert stat.S_IMODE(planted.stat().st_mode) == 0o700
        assert library_in(planted).stat().st_uid == 0


def test_a_library_that_others_may_write_is_not_run(planted):
    library_in(planted).chmod(0o722)
    assert native.library().sage_answer() == 42
    assert stat.S_IMODE(library_in(planted).stat().st_mode) == 0o600


def test_a_relative_cache_is_not_looked_for_where_one_stands(planted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert native.library().sage_answer() == 42
    assert library_in(tmp_path / "home" / ".cache" / "sage_snn")


def test_a_link_is_not_followed_to_a_library(planted, tmp_path):
    elsewhere = shutil.move(library_in(planted), tmp_path / "elsewhere.so")
    (planted / library_name(planted)).symlink_to(elsewhere)
    assert native.library().sage_answer() == 42
    assert not library_in(planted).is_symlink()


def library_name(folder):
    return next(folder.glob("*.sha256")).name.removesuffix(".sha256")


def test_nothing_is_open_to_others_whatever_the_umask(fresh):
    before = os.umask(0)
    try:
        assert native.library() is not None
    finally:
        os.umask(before)
    for path in (fresh.parent, fresh, *fresh.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_lock_that_is_a_link_leaves_its_target_alone(fresh, tmp_path, capfd):
    (tmp_path / "precious").write_text("precious")
    fresh.mkdir(parents=True)
    (fresh / "lock").symlink_to(tmp_path / "precious")
    assert native.library().sage_answer() == 42
    assert (tmp_path / "precious").read_text() == "precious"
    assert "not kept for the next time" in capfd.readouterr().err


@pytest.mark.parametrize("size", [0, 64, 5000])
def test_a_truncated_library_is_compiled_again(fresh, size, capfd):
    assert native.library() is not None
    whole = library_in(fresh).read_bytes()
    library_in(fresh).unlink()  # the one that is mapped must not shrink under this process
    (fresh / library_name(fresh)).write_bytes(whole[:size])
    native.forget()
    assert native.library().sage_answer() == 42
    assert library_in(fresh).stat().st_size == len(whole)
    assert capfd.readouterr().err.count("compiling its kernels") == 2


def test_a_library_does_not_stand_in_for_another(fresh):
    assert native.library() is not None
    name, other = library_name(fresh), "kernels-other.so"
    for suffix in ("", ".sha256"):
        shutil.copy(fresh / f"{name}{suffix}", fresh / f"{other}{suffix}")
    with cache.opened() as kept:
        assert kept.load(name) is not None
        assert kept.load(other) is None


def test_a_process_that_holds_the_lock_for_ever_is_not_waited_for(fresh, monkeypatch, capfd):
    monkeypatch.setattr(native, "SECONDS", 1.0)
    monkeypatch.setattr(cache, "_SECONDS_OF_PATIENCE", 0.2)
    fresh.mkdir(parents=True)
    with (fresh / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        assert native.library().sage_answer() == 42
        assert time.monotonic() - started < 20
    told = capfd.readouterr().err
    assert told.count("waiting for another process that compiles the kernels") == 1
    assert f"another process has held {fresh / 'lock'} for 1 s; stop it" in told


def test_what_a_kill_left_is_overwritten(fresh):
    assert native.library() is not None
    name = library_name(fresh)
    shutil.rmtree(fresh)
    fresh.mkdir()
    for left in (f"{name}.tmp", f"{name}.sha256.tmp"):
        (fresh / left).write_bytes(b"half")
    native.forget()
    assert native.library() is not None
    assert {path.name for path in fresh.iterdir()} == {"lock", name, f"{name}.sha256"}


def test_a_cache_that_is_a_link_is_refused_with_the_cure(fresh, tmp_path):
    (tmp_path / "real").mkdir()
    fresh.parent.mkdir(parents=True)
    fresh.symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="is a symbolic link; set XDG_CACHE_HOME"), cache.opened():
        pass


@pytest.fixture
def somebodys(tmp_path, monkeypatch):
    """Runs work as a user who may do little, where this one may do all, in a folder that both reach."""
    folder = Path(tempfile.mkdtemp(prefix="sage-snn-test-"))  # pytest's own folders are closed to others
    user = SOMEBODY if os.geteuid() == 0 else os.geteuid()
    (folder / "cpp").mkdir()
    (folder / "cpp" / "answer.cpp").write_text(f"// {folder}\n{CODE}")
    (folder / "home").mkdir()
    for path in (folder, folder / "home"):
        path.chmod(0o755)
        os.chown(path, user, -1)
    monkeypatch.setattr(native, "SOURCES", folder / "cpp")
    monkeypatch.setenv("HOME", str(folder / "home"))
    for name in ("XDG_CACHE_HOME", "SAGE_SNN_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    native.forget()
    yield folder, user, lambda work: in_a_process_of(user, work)
    native.forget()
    shutil.rmtree(folder)


def in_a_process_of(user, work):
    """What `work` gives, as text; a fork, since not every user can read the interpreter's files."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        told = "it did not start"
        try:
            if os.geteuid() != user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            told = str(work())
        except BaseException as error:
            told = repr(error)
        finally:
            os.write(writer, told.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def answer():
    library = native.library()
    return "no library" if library is None else library.sage_answer()


def test_an_unprivileged_user_has_a_cache_of_his_own(somebodys):
    folder, user, as_somebody = somebodys
    assert as_somebody(answer) == "42"
    cached = folder / "home" / ".cache" / "sage_snn"
    for path in (cached, *cached.iterdir()):
        assert path.stat().st_uid == user
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    before = library_in(cached).stat().st_mtime_ns
    assert as_somebody(answer) == "42"  # from the cache
    assert library_in(cached).stat().st_mtime_ns == before


def test_an_unprivileged_user_runs_nothing_that_another_one_planted(somebodys, capfd):
    folder, user, as_somebody = somebodys
    assert as_somebody(answer) == "42"
    cached = folder / "home" / ".cache" / "sage_snn"
    name = library_name(cached)
    (folder / "evil.cpp").write_text(CODE + EVIL % (folder / "owned"))
    target = folder / name
    subprocess.run(
        [*native._compilers()[0], "-shared", "-fPIC", str(folder / "evil.cpp"), "-o", str(target)], check=True
    )
    content = target.read_bytes()
    for suffix, planted in (("", content), (".sha256", cache._told(name, content))):
        (cached / f"{name}{suffix}").unlink()
        (cached / f"{name}{suffix}").write_bytes(planted)
        (cached / f"{name}{suffix}").chmod(0o666)  # whose it is cannot be told from a file that all may write
        if os.geteuid() == 0:
            os.chown(cached / f"{name}{suffix}", user + 1, -1)
    cached.chmod(0o777)
    assert as_somebody(answer) == "42"
    assert not (folder / "owned").exists()
    assert stat.S_IMODE(cached.stat().st_mode) == 0o700
    assert library_in(cached).stat().st_uid == user


def test_a_cache_that_an_unprivileged_user_cannot_enter_is_no_obstacle(somebodys, capfd):
    folder, _, as_somebody = somebodys
    (folder / "home" / ".cache").mkdir()
    (folder / "home" / ".cache").chmod(0o000)
    try:
        assert as_somebody(answer) == "42"
    finally:
        (folder / "home" / ".cache").chmod(0o700)
    assert "not kept for the next time" in capfd.readouterr().err
