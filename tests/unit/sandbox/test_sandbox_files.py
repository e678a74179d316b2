"""Reading, listing and writing files of a hostile tree."""

import hashlib
import os
from pathlib import Path

import pytest

from libs.contracts.sandbox import FileWrite
from services.sandbox.errors import BadPath, BadRequest, FileChanged, FileMissing
from services.sandbox.files import list_folder, read_file
from services.sandbox.paths import Tree
from services.sandbox.writes import write_files

SECRET = b"do-not-leak-4711"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_bytes(SECRET)
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(b"a = 1\r\n")
    (root / "nämé ☃.py").write_bytes("# 你好\n".encode())
    return root


@pytest.fixture
def tree(root: Path) -> Tree:
    return Tree(root)


def contents(root: Path) -> dict[str, bytes]:
    """Every file below the tree, to see that nothing changed."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def write(tree: Tree, *writes: FileWrite) -> None:
    write_files(tree, tree.root.parent / "staging", writes)


def put(path: str, content: bytes | None, **more: object) -> FileWrite:
    return FileWrite.model_validate({"path": path, "content": content, **more})


def test_file_is_read_with_its_facts(tree, root):
    (root / "src" / "a.py").chmod(0o755)
    found = read_file(tree, "src/a.py", 3)
    assert (found.content, found.size, found.mode, found.truncated) == (b"a =", 7, 0o755, True)
    assert found.sha256 == hashlib.sha256(b"a = 1\r\n").hexdigest()


@pytest.mark.parametrize("path", ["nämé ☃.py", "./nämé ☃.py", "src/../nämé ☃.py", "/workspace/nämé ☃.py"])
def test_same_file_under_several_spellings(tree, path):
    assert read_file(tree, path, 100).path == "nämé ☃.py"


@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", "src/../../outside/secret.txt", "/etc/passwd", "/workspace/../etc/passwd", "a\0b"]
)
def test_path_out_of_the_workspace_is_refused(tree, path):
    with pytest.raises(BadPath):
        read_file(tree, path, 100)


@pytest.mark.parametrize("path", [".git", ".git/config", "sub/.GIT/hooks/post-commit", "git~1/config"])
def test_git_folder_is_not_a_place_for_files(tree, path):
    with pytest.raises(BadPath, match="git folder"):
        write(tree, put(path, b"x"))


def test_links_inside_are_followed(tree, root):
    (root / "link.py").symlink_to("src/a.py")
    (root / "folder").symlink_to("/workspace/src")
    assert read_file(tree, "link.py", 100).path == "src/a.py"
    assert read_file(tree, "folder/a.py", 100).path == "src/a.py"


@pytest.mark.parametrize("target", ["../outside/secret.txt", "/etc/passwd", "{outside}/secret.txt"])
def test_links_that_lead_outside_are_refused_for_reading_and_writing(tree, root, target):
    (root / "escape").symlink_to(target.format(outside=root.parent / "outside"))
    for attempt in (lambda: read_file(tree, "escape", 100), lambda: write(tree, put("escape", b"overwritten"))):
        with pytest.raises(BadPath):
            attempt()
    assert (root.parent / "outside" / "secret.txt").read_bytes() == SECRET


def test_folder_that_is_a_link_outside_is_refused(tree, root):
    (root / "way").symlink_to(root.parent / "outside")
    for attempt in (
        lambda: read_file(tree, "way/secret.txt", 100),
        lambda: write(tree, put("way/new.txt", b"x")),
        lambda: list_folder(tree, "way"),
    ):
        with pytest.raises(BadPath, match="outside of the workspace"):
            attempt()
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


def test_links_in_a_circle_are_refused(tree, root):
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    with pytest.raises(BadPath, match="too many links"):
        read_file(tree, "one", 100)


def test_what_is_not_a_regular_file_is_refused_without_waiting(tree, root):
    os.mkfifo(root / "pipe")
    for path in ("pipe", "src"):
        with pytest.raises(BadPath):
            read_file(tree, path, 100)


def test_missing_file_is_named(tree):
    with pytest.raises(FileMissing, match=r"src/none\.py"):
        read_file(tree, "src/none.py", 100)


def test_folder_is_listed_without_git(tree, root):
    (root / ".git").mkdir()
    (root / "link").symlink_to("src")
    listing = list_folder(tree, ".")
    assert [(entry.name, entry.kind) for entry in listing.entries] == [("link", "symlink"), ("nämé ☃.py", "file"), ("src", "directory")]


def test_name_that_is_not_utf8_is_listed_escaped(tree, root):
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff.txt")).write_bytes(b"")
    assert "bad\\xff.txt" in [entry.name for entry in list_folder(tree, ".").entries]


def test_files_are_made_changed_and_deleted_together(tree, root):
    write(tree, put("new/deep/b.py", b"b"), put("src/a.py", b"a = 2\n"), put("nämé ☃.py", None))
    assert contents(root) == {"new/deep/b.py": b"b", "src/a.py": b"a = 2\n"}


def test_mode_bits_are_kept_unless_given(tree, root):
    (root / "src" / "a.py").chmod(0o755)
    write(tree, put("src/a.py", b"x"), put("plain.sh", b"x"), put("run.sh", b"x", mode=0o755))
    assert [(root / name).stat().st_mode & 0o777 for name in ("src/a.py", "plain.sh", "run.sh")] == [0o755, 0o644, 0o755]


def test_writing_to_a_link_writes_what_it_leads_to(tree, root):
    (root / "link.py").symlink_to("src/a.py")
    write(tree, put("link.py", b"through"))
    assert (root / "link.py").is_symlink()
    assert (root / "src" / "a.py").read_bytes() == b"through"


def test_deleting_a_link_keeps_what_it_leads_to(tree, root):
    (root / "link.py").symlink_to("src/a.py")
    write(tree, put("link.py", None))
    assert not (root / "link.py").is_symlink()
    assert (root / "src" / "a.py").exists()


def test_rename_keeps_mode_and_removes_empty_folders(tree, root):
    (root / "src" / "a.py").chmod(0o755)
    write(tree, put("lib/b.py", b"a = 3\n", renamed_from="src/a.py"))
    assert (root / "lib" / "b.py").stat().st_mode & 0o777 == 0o755
    assert not (root / "src").exists()


def test_move_without_content_keeps_bytes_and_links(tree, root):
    (root / "link").symlink_to("src/a.py")
    write(tree, put("src/c.py", None, renamed_from="src/a.py"), put("moved", None, renamed_from="link"))
    assert (root / "src" / "c.py").read_bytes() == b"a = 1\r\n"
    assert (root / "moved").readlink() == Path("src/a.py")


def test_two_files_swap_their_names(tree, root):
    write(tree, put("src/a.py", b"snow", renamed_from="nämé ☃.py"), put("nämé ☃.py", b"a", renamed_from="src/a.py"))
    assert contents(root) == {"src/a.py": b"snow", "nämé ☃.py": b"a"}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (put("../x", b""), BadPath),
        (put("none.py", None), FileMissing),
        (put("src", None), BadPath),
        (put("src", b"a folder"), BadPath),
        (put("src/a.py/below", b""), BadPath),
        (put("x", b"", renamed_from="none.py"), FileMissing),
        (put("src/a.py", b"", expected_sha256="0" * 64), FileChanged),
        (put("src/a.py", b"", expected_sha256=""), FileChanged),
        (put("first.py", b"again"), BadRequest),
    ],
)
def test_one_bad_write_leaves_everything_as_it_was(tree, root, bad, error):
    before = contents(root)
    with pytest.raises(error):
        write(tree, put("first.py", b"1"), put("nämé ☃.py", None), bad)
    assert contents(root) == before


def test_failure_in_the_middle_is_taken_back(tree, root):
    """The last name is too long for the file system, which shows only when it is written."""
    before = contents(root)
    with pytest.raises(BadPath):
        write(tree, put("src/a.py", b"changed"), put("nämé ☃.py", None), put("deep/er/new.py", b"new"), put("x/" + "y" * 300, b""))
    assert contents(root) == before
    assert not (root / "deep").exists()


def test_expected_digest_lets_the_right_file_through(tree, root):
    digest = read_file(tree, "src/a.py", 0).sha256
    write(tree, put("src/a.py", b"ok", expected_sha256=digest), put("fresh", b"", expected_sha256=""))
    assert (root / "src" / "a.py").read_bytes() == b"ok"


def test_staging_is_empty_afterwards(tree, root):
    write(tree, put("src/a.py", b"x"), put("nämé ☃.py", None))
    assert os.listdir(root.parent / "staging") == []
