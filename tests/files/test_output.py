"""Where writes are decided: nothing of the user's is lost, replaced or widened."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from specsched.errors import SpecschedError
from specsched.files.output import (
    WriteError,
    atomic_write,
    check_output,
    damaged,
    file_name,
    protecting,
    write_json,
)


def write(path: Path, text: str = "new") -> None:
    with atomic_write(path) as stream:
        stream.write(text)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_links_are_written_through_also_chained_and_dangling(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    real = tmp_path / "below" / "real"
    real.write_text("old")
    (tmp_path / "one").symlink_to("below/real")
    (tmp_path / "two").symlink_to("one")
    write(tmp_path / "two")
    assert (tmp_path / "two").is_symlink()
    assert (tmp_path / "one").is_symlink()
    assert real.read_text() == "new"
    (tmp_path / "dangling").symlink_to("below/later")
    write(tmp_path / "dangling", "made")
    assert (tmp_path / "below" / "later").read_text() == "made"
    assert (tmp_path / "dangling").is_symlink()


def test_read_only_files_are_refused_also_to_root_and_through_links(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o400)
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(WriteError, match=rf"{name} is read-only"):
            write(tmp_path / name)
    assert path.read_text() == "old"


def test_a_pipe_is_written_into_and_one_without_reader_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr("specsched.files.output._READER_SECONDS", 0.0)
    with pytest.raises(WriteError, match="nobody reads the pipe"):
        write(path)
    monkeypatch.setattr("specsched.files.output._READER_SECONDS", 60.0)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(path.read_text()))
    reader.start()
    write(path, "x" * 300_000)  # more than a pipe holds at once
    reader.join()
    assert got == ["x" * 300_000]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays_one() -> None:
    write(Path("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_failure_leaves_what_was_there_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write(f"half {1 / 0}")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    # /dev/full fails every write as a full disk does.
    with pytest.raises(WriteError, match=r"cannot write /dev/full: No space left on device; free some space"):
        write(Path("/dev/full"))
    with pytest.raises(WriteError, match="answer: No space left"), atomic_write(tmp_path / "answer"):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_inputs_are_never_outputs_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("input")
    (tmp_path / "soft").symlink_to("input")
    os.link(path, tmp_path / "hard")
    for force in (False, True):
        with protecting([path], force=force):
            for name in ("input", "soft", "hard", "../" + tmp_path.name + "/input"):
                with pytest.raises(WriteError, match="is the input"):
                    write(tmp_path / name)
    assert path.read_text() == "input"


def test_what_exists_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with protecting([]):
        with pytest.raises(WriteError, match=r"exists already and would be lost.*--force"):
            check_output(path)
        with pytest.raises(WriteError, match="--force"):
            write(path)
        write(tmp_path / "fresh")
        write(tmp_path / "fresh", "again")  # its own
    assert path.read_text() == "precious"
    with protecting([], force=True):
        write(path)
    assert path.read_text() == "new"


def test_an_empty_file_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "made-by-mktemp").touch()
    with protecting([]):
        write(tmp_path / "made-by-mktemp")
    assert (tmp_path / "made-by-mktemp").read_text() == "new"


def test_a_folder_replaces_the_earlier_answer_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "answer.json", {"schema": "specsched/answer/1"})
    write_json(tmp_path / "plan.json", {"schema": "specsched/profile/1"})
    write_json(tmp_path / "profile.json", {"schema": "specsched/profile/1"})
    (tmp_path / "report.html").write_text("<p>mine</p>")
    (tmp_path / "pareto.png").write_bytes(b"\x89PNG of another tool")
    with protecting([], folder=tmp_path):
        write_json(tmp_path / "answer.json", {"schema": "specsched/answer/1", "second": True})
        for foreign in ("plan.json", "profile.json", "report.html", "pareto.png"):
            with pytest.raises(WriteError, match=foreign):
                check_output(tmp_path / foreign)


@pytest.mark.parametrize(
    "name",
    ["../../escaped", "/etc/passwd", "a/b", "..", "", "a\nb", "nul\0", "\x1b[31m", ".hidden", "é" * 300],
)
def test_a_name_out_of_a_file_is_the_name_of_one_file(tmp_path: Path, name: str) -> None:
    safe = file_name(name)
    assert safe
    assert (tmp_path / f"{safe}.json").parent == tmp_path
    assert safe.isprintable()
    assert "/" not in safe
    assert not safe.startswith(".")
    (tmp_path / f"{safe}.json").write_text("")


def test_ordinary_names_stay() -> None:
    assert file_name("h100-sxm_qwen3-8b_bf16_tp1") == "h100-sxm_qwen3-8b_bf16_tp1"


def test_a_damaged_file_is_told_without_a_library_s_advice(tmp_path: Path) -> None:
    with pytest.raises(SpecschedError) as told, damaged(tmp_path / "part", SpecschedError, "delete it"):
        raise RuntimeError("re-run with weights_only=False, at your own risk")
    assert str(told.value) == f"{tmp_path / 'part'} is damaged (RuntimeError); delete it"
