import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from findings.writing import WriteError, command, refused, require_writable, size, whole_file

SCRIPTS = Path(__file__).parents[2] / "scripts"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x"
    with whole_file(path) as part:
        part.write_text("one", encoding="utf-8")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "one"
    with pytest.raises(KeyError), whole_file(path) as part:
        part.write_text("half", encoding="utf-8")
        raise KeyError
    assert path.read_text(encoding="utf-8") == "one"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_rights_that_the_user_gives(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with whole_file(tmp_path / "x"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_full_disk_is_told_with_the_files_own_name_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(WriteError) as caught, whole_file(path):
        full()
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be written: the disk is full (")
    assert "type the same command again" in said
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text(encoding="utf-8") == "old"


def test_an_error_about_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, whole_file(tmp_path / "x"):
        (tmp_path / "elsewhere" / "y").read_bytes()
    assert not isinstance(caught.value, WriteError)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "Permission denied"),
        (errno.EPERM, "Operation not permitted"),
    ],
)
def test_every_refusal_has_its_words_and_other_errors_none(number: int, words: str, tmp_path: Path) -> None:
    found = refused(OSError(number, os.strerror(number), str(tmp_path / "no" / "x")))
    assert found is not None
    assert words in str(found)
    assert "then type the same command again" in str(found)
    assert refused(OSError(errno.ENOENT, "x", "y")) is None


def test_a_file_that_may_not_be_read_is_no_refusal_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert refused(PermissionError(errno.EACCES, "Permission denied", str(path))) is None


def test_a_folder_that_is_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        require_writable(tmp_path / "file" / "folder")
    require_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("count", "up", "text"),
    [
        (0, False, "0 bytes"),
        (1, True, "1 byte"),
        (1024, True, "1.0 KiB"),
        (1025, True, "1.1 KiB"),
        (1025, False, "1.0 KiB"),
        (49_151, False, "47.9 KiB"),
        (64 * 2**20, False, "64.0 MiB"),
        (3 * 2**30 + 1, True, "3.1 GiB"),
    ],
)
def test_sizes_never_read_as_nothing(count: int, up: bool, text: str) -> None:
    assert size(count, up=up) == text


def tool(act: Callable[[], None]) -> Callable[..., int]:
    @command
    def main(argv: Sequence[str] | None = None) -> int:
        act()
        return 0

    return main


def test_a_tool_ends_with_two_sentences_and_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> None:
        with whole_file(tmp_path / "x"):
            full()

    assert tool(write)([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("test_writing: ")
    assert said.count("\n") == 1
    assert "the disk is full" in said
    assert tool(lambda: None)() == 0
    assert tool(lambda: (tmp_path / "none").write_bytes(b"") and None)([]) == 0
    assert tool(lambda: (tmp_path / "gone" / "y").open("rb") and None)([]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ConnectionError):
        tool(lambda: (_ for _ in ()).throw(ConnectionError("no file in it")))()


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_every_tool_tells_such_errors_in_that_way(path: Path) -> None:
    assert "@command\ndef main(" in path.read_text(encoding="utf-8")
