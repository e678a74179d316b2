"""Trees, files, differences and histories are read as they are, whatever the files are called."""

import os

import pytest

from services.artifact.answers import fitting_entries, fitting_patch
from services.artifact.domain import ChangedFile, FileEntry, Patch
from services.artifact.errors import InvalidName, NotAFile, RepositoryNotFound, UnknownCommit
from services.artifact.importing import Importer
from services.artifact.reading import Reader
from tests.unit.artifact.sample import Sample, run_git

ODD = "nämé ☃.py"
AWKWARD = 'a "quoted"\ttab\nline\\.txt'


async def imported(importer: Importer, source: Sample) -> str:
    return (await importer.import_source(str(source.path))).repository


async def test_every_kind_of_entry_is_listed_under_its_own_name(importer: Importer, reader: Reader, source: Sample) -> None:
    source.commit({ODD: "x = 1\n", AWKWARD: "y\n", "中文/文件.txt": "内容\n", "run.sh": "#!/bin/sh\n"})
    (source.path / "link").symlink_to("../outside")
    (source.path / "run.sh").chmod(0o755)
    source.git("update-index", "--add", "--cacheinfo", f"160000,{source.head},vendor/lib")
    source.git("add", "link", "run.sh")
    source.git("commit", "-q", "-m", "entries")
    files = {entry.path: entry for entry in await reader.list_files(await imported(importer, source), source.head)}
    assert set(files) == {"README.md", "calc.py", ODD, AWKWARD, "中文/文件.txt", "run.sh", "link", "vendor/lib"}
    modes = {path: files[path].mode for path in ("run.sh", "link", "vendor/lib", ODD)}
    assert modes == {"run.sh": "100755", "link": "120000", "vendor/lib": "160000", ODD: "100644"}
    assert files["中文/文件.txt"].size_bytes == 7


async def test_files_are_read_byte_for_byte(importer: Importer, reader: Reader, source: Sample) -> None:
    content = b"\xef\xbb\xbfone\r\ntwo\r\n\x00\xff"
    source.git("config", "core.autocrlf", "false")
    source.commit({ODD: content, AWKWARD: b"y", ".gitattributes": "* text=auto eol=crlf\n"})
    (source.path / "link").symlink_to("/etc/passwd")
    head = source.commit({})
    name = await imported(importer, source)
    assert (await reader.read_file(name, head, AWKWARD, 100)).data == b"y"
    assert (await reader.read_file(name, head, "link", 100)).data == b"/etc/passwd"
    whole = await reader.read_file(name, head, ODD, 1000)
    stored = run_git(source.path, "cat-file", "-s", f"{head}:{ODD}").stdout.strip()
    assert (len(whole.data), whole.truncated) == (int(stored), False)
    part = await reader.read_file(name, head, ODD, 4)
    assert (part.data, part.truncated, part.entry.size_bytes) == (content[:4], True, int(stored))


async def test_carriage_returns_stay(importer: Importer, reader: Reader, source: Sample) -> None:
    head = source.commit({"dos.txt": b"a\r\nb\r\n"})
    assert (await reader.read_file(await imported(importer, source), head, "dos.txt", 100)).data == b"a\r\nb\r\n"


@pytest.mark.parametrize("path", ["missing", "folder", "", "/", "folder/", "../README.md", "-x", ":(glob)*", "*", "a\0b"])
async def test_what_is_no_file_is_said_to_be_none(path: str, importer: Importer, reader: Reader, source: Sample) -> None:
    head = source.commit({"folder/a": "a\n"})
    with pytest.raises(NotAFile):
        await reader.read_file(await imported(importer, source), head, path, 100)


async def test_unknown_repositories_and_commits_are_told_apart(importer: Importer, reader: Reader, source: Sample) -> None:
    name = await imported(importer, source)
    tree = source.git("rev-parse", "HEAD^{tree}")
    with pytest.raises(RepositoryNotFound):
        await reader.list_files("nowhere", source.head)
    for sha in ("0" * 40, tree):
        with pytest.raises(UnknownCommit):
            await reader.list_files(name, sha)
    with pytest.raises(InvalidName):
        await reader.list_files(name, "--output=/tmp/x")


async def test_changes_of_every_kind_are_counted(importer: Importer, reader: Reader, source: Sample) -> None:
    base = source.commit({"moved.py": "\n".join(map(str, range(50))), "gone.py": "x\n", "bin": b"\0\1", "typed": "x\n", ODD: "a\nb\n"})
    source.git("mv", "moved.py", "neu ☃.py")
    os.remove(source.path / "typed")
    (source.path / "typed").symlink_to("calc.py")
    head = source.commit({"gone.py": None, "bin": b"\0\2\3", ODD: "a\nc\nd\n", AWKWARD: "new\n"})
    changes = {change.path: change for change in await reader.changed_files(await imported(importer, source), base, head)}
    assert changes == {
        "neu ☃.py": ChangedFile("neu ☃.py", "renamed", "moved.py", 0, 0),
        "gone.py": ChangedFile("gone.py", "deleted", None, 0, 1),
        "bin": ChangedFile("bin", "modified", None, None, None),
        "typed": ChangedFile("typed", "type_changed", None, 1, 1),
        ODD: ChangedFile(ODD, "modified", None, 2, 1),
        AWKWARD: ChangedFile(AWKWARD, "added", None, 1, 0),
    }


async def test_the_patch_applies_and_names_files_in_plain_letters(importer: Importer, reader: Reader, source: Sample) -> None:
    base = source.commit({ODD: "a\r\nb\r\n", "moved.py": "\n".join(map(str, range(50)))})
    source.git("mv", "moved.py", "other.py")
    head = source.commit({ODD: "a\r\nc\r\n", "bin": b"\0\1"})
    patch = await reader.diff(await imported(importer, source), base, head)
    text = patch.data.decode()
    assert f"+++ b/{ODD}" in text
    assert "+c\r\n" in text
    assert "rename from moved.py" in text
    assert "Binary files /dev/null and b/bin differ" in text
    cut = await reader.diff(await imported(importer, source), base, head, max_bytes=50)
    assert (cut.truncated, cut.data) == (True, patch.data[:50])


async def test_the_history_between_two_commits_is_told(importer: Importer, reader: Reader, source: Sample) -> None:
    base = source.head
    source.commit({"a": "1\n"}, "fix: 修复\n\nbody line\n\nTrailer: x")
    head = source.commit({"a": "2\n"}, "second")
    log = await reader.log(await imported(importer, source), head, base)
    assert [commit.subject for commit in log] == ["second", "fix: 修复"]
    assert log[1].body == "body line\n\nTrailer: x"
    assert log[1].parents == (base,)
    assert log[0].authored_at.timestamp() == 1700000000


async def test_several_files_are_read_at_once(importer: Importer, reader: Reader, source: Sample) -> None:
    head = source.commit({ODD: "a" * 10, AWKWARD: "\n\n", "empty": "", "big": "b" * 50, "late": "c" * 10})
    name = await imported(importer, source)
    asked = ["missing", "late", AWKWARD, "folder", ODD, "empty", "big", ODD]
    found = await reader.read_files(name, head, asked, max_bytes=20, total_bytes=1000)
    assert [(file.entry.path, file.data, file.truncated) for file in found] == [
        ("late", b"c" * 10, False),
        (AWKWARD, b"\n\n", False),
        (ODD, b"a" * 10, False),
        ("empty", b"", False),
        ("big", b"b" * 20, True),
    ]
    assert [file.entry.path for file in await reader.read_files(name, head, asked, max_bytes=20, total_bytes=12)] == [
        "late",
        AWKWARD,
        "empty",
    ]
    assert [file.truncated for file in await reader.read_files(name, head, ["big", "empty"], max_bytes=0, total_bytes=0)] == [True, False]


async def test_a_name_that_is_not_text_is_listed_and_can_be_shown(importer: Importer, reader: Reader, source: Sample) -> None:
    (source.path / os.fsdecode(b"latin-\xe9.txt")).write_text("x")
    head = source.commit({})
    name = await imported(importer, source)
    listed = [entry.path for entry in await reader.list_files(name, head)]
    assert os.fsdecode(b"latin-\xe9.txt") in listed
    tree = fitting_entries(await reader.list_files(name, head), 100)
    assert "latin-\\xe9.txt" in [entry.path for entry in tree.entries]
    assert tree.model_dump_json()


async def test_a_mode_change_is_told_apart(importer: Importer, reader: Reader, source: Sample) -> None:
    base = source.head
    (source.path / "calc.py").chmod(0o755)
    head = source.commit({})
    changes = await reader.changed_files(await imported(importer, source), base, head)
    assert changes == [ChangedFile("calc.py", "mode_changed", None, 0, 0)]


def test_answers_are_cut_to_what_one_message_carries() -> None:
    many = [FileEntry("x" * 4000, "100644", 1, "0" * 40)] * 3000
    tree = fitting_entries(many, 20_000)
    assert tree.truncated
    assert len(tree.model_dump_json()) < 8_000_000
    patch = fitting_patch(Patch(b"\x01" * 4_000_000, truncated=False), [], 4_000_000)
    assert patch.truncated
    assert len(patch.model_dump_json()) < 8_000_000
    assert fitting_patch(Patch("+ä\r\n".encode(), truncated=False), [], 100).diff == "+ä\r\n"
