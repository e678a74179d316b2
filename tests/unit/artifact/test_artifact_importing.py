"""Import from directories and from the store: what is brought in, what is refused, and what a second import leaves alone."""

import os
from pathlib import Path

import pytest

from services.artifact.domain import Limits
from services.artifact.errors import (
    EmptyRepository,
    NotARepository,
    RepositoryNotFound,
    SourceRefused,
    TooLarge,
    UnknownBase,
)
from services.artifact.importing import Importer, explain
from services.artifact.repositories import Repositories
from tests.unit.artifact.sample import Sample, run_git


async def test_a_directory_is_imported_at_its_checked_out_commit(importer: Importer, repositories: Repositories, source: Sample) -> None:
    (source.path / "calc.py").write_text("not committed\n")
    imported = await importer.import_source(str(source.path))
    assert (imported.base_branch, imported.base_commit, imported.default_branch) == ("main", source.head, "main")
    assert imported.size_bytes > 0
    assert repositories.names() == [imported.repository]


async def test_the_branch_that_is_checked_out_is_the_base(importer: Importer, source: Sample) -> None:
    source.git("checkout", "-q", "-b", "feature/加法")
    head = source.commit({"new.py": "x = 1\n"})
    imported = await importer.import_source(str(source.path))
    assert (imported.base_branch, imported.base_commit) == ("feature/加法", head)


async def test_a_detached_head_is_a_base_without_a_branch(importer: Importer, source: Sample) -> None:
    source.git("checkout", "-q", "--detach")
    head = source.commit({"new.py": "x = 1\n"})
    imported = await importer.import_source(str(source.path))
    assert (imported.base_branch, imported.base_commit, imported.default_branch) == (None, head, "main")


async def test_a_default_branch_of_any_name_is_kept(importer: Importer, repositories: Repositories, tmp_path: Path) -> None:
    sample = Sample(tmp_path / "other", branch="trunk")
    head = sample.commit({"a": "a\n"})
    imported = await importer.import_source(str(sample.path))
    assert (imported.default_branch, imported.base_commit) == ("trunk", head)
    assert run_git(repositories.path(imported.repository), "symbolic-ref", "HEAD").stdout.strip() == "refs/heads/trunk"


async def test_a_base_may_be_a_branch_a_tag_or_a_commit(importer: Importer, source: Sample) -> None:
    first = source.head
    source.git("tag", "-a", "v1", "-m", "one")
    source.git("branch", "old")
    source.commit({"b": "b\n"})
    found = [
        await importer.import_source(str(source.path), base) for base in ("old", "refs/heads/old", "v1", "refs/tags/v1", first, first[:10])
    ]
    assert {item.base_commit for item in found} == {first}
    assert [item.base_branch for item in found] == ["old", "old", None, None, None, None]


async def test_an_unknown_base_lists_the_branches(importer: Importer, source: Sample) -> None:
    source.git("branch", "stable")
    for base in ("nope", "--upload-pack=x", "a b", "HEAD~1", "..", "0" * 40, "x\0y"):
        with pytest.raises(UnknownBase, match="main, stable"):
            await importer.import_source(str(source.path), base)


async def test_an_empty_repository_is_named_as_such_and_leaves_nothing(
    importer: Importer, repositories: Repositories, tmp_path: Path
) -> None:
    sample = Sample(tmp_path / "empty")
    with pytest.raises(EmptyRepository):
        await importer.import_source(str(sample.path))
    assert repositories.names() == []
    assert list((repositories.root / "work").iterdir()) == []


async def test_what_is_no_repository_is_told_apart(importer: Importer, source: Sample, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (source.path / "inner").mkdir()
    with pytest.raises(NotARepository):
        await importer.import_source(str(tmp_path / "plain"))
    with pytest.raises(NotARepository, match="top directory"):
        await importer.import_source(str(source.path / "inner"))
    with pytest.raises(RepositoryNotFound):
        await importer.import_source(str(tmp_path / "missing"))
    with pytest.raises(RepositoryNotFound):
        await importer.import_source("no-such-repository")


async def test_shallow_and_partial_clones_are_refused_with_the_way_out(importer: Importer, source: Sample, tmp_path: Path) -> None:
    source.commit({"b": "b\n"})
    source.git("config", "uploadpack.allowFilter", "true")
    run_git(tmp_path, "clone", "-q", "--depth=1", f"file://{source.path}", "shallow")
    run_git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{source.path}", "partial")
    with pytest.raises(SourceRefused, match="--unshallow"):
        await importer.import_source(str(tmp_path / "shallow"))
    with pytest.raises(SourceRefused, match="partial clone"):
        await importer.import_source(str(tmp_path / "partial"))


async def test_bare_repositories_and_linked_worktrees_are_imported(importer: Importer, source: Sample, tmp_path: Path) -> None:
    source.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    run_git(tmp_path, "clone", "-q", "--bare", str(source.path), "bare.git")
    side = await importer.import_source(str(tmp_path / "side"))
    bare = await importer.import_source(str(tmp_path / "bare.git"))
    assert (side.base_branch, side.base_commit) == ("side", source.head)
    assert (bare.base_branch, bare.base_commit) == ("main", source.head)


async def test_a_second_import_brings_what_is_new_and_keeps_fix_branches(
    importer: Importer, repositories: Repositories, source: Sample
) -> None:
    first = await importer.import_source(str(source.path))
    git = repositories.git(first.repository)
    await git.run("update-ref", "refs/heads/fix/issue-1", first.base_commit)
    source.git("branch", "gone")
    await importer.import_source(str(source.path))
    source.git("branch", "-D", "gone")
    source.git("checkout", "-q", "-b", "fix/issue-1")
    source.git("commit", "-q", "--amend", "-m", "rewritten")
    source.git("checkout", "-q", "main")
    head = source.commit({"c": "c\n"})
    second = await importer.import_source(str(source.path))
    assert second.repository == first.repository
    assert second.base_commit == head
    assert await repositories.refs(git, "refs/heads/") == {"main": head, "fix/issue-1": first.base_commit}


async def test_a_branch_that_was_pushed_to_here_is_not_thrown_back(importer: Importer, repositories: Repositories, source: Sample) -> None:
    imported = await importer.import_source(str(source.path))
    git = repositories.git(imported.repository)
    ours = await git.having(GIT_COMMITTER_NAME="x", GIT_COMMITTER_EMAIL="x@y", GIT_AUTHOR_NAME="x", GIT_AUTHOR_EMAIL="x@y").text(
        "commit-tree", f"{imported.base_commit}^{{tree}}", "-p", imported.base_commit, "-m", "pushed here"
    )
    await git.run("update-ref", "refs/heads/main", ours)
    head = source.commit({"c": "c\n"})
    again = await importer.import_source(str(source.path))
    assert again.base_commit == head
    assert await repositories.refs(git, "refs/heads/") == {"main": ours}


async def test_a_rewritten_source_branch_is_followed(importer: Importer, repositories: Repositories, source: Sample) -> None:
    imported = await importer.import_source(str(source.path))
    source.git("commit", "-q", "--amend", "-m", "rewritten")
    again = await importer.import_source(str(source.path))
    assert again.base_commit == source.head != imported.base_commit
    assert await repositories.refs(repositories.git(again.repository), "refs/heads/") == {"main": source.head}


async def test_a_repository_of_the_store_is_a_source_too(importer: Importer, repositories: Repositories, source: Sample) -> None:
    first = await importer.import_source(str(source.path))
    stored = await importer.import_source(first.repository)
    assert (stored.repository, stored.base_branch, stored.base_commit) == (first.repository, "main", first.base_commit)
    await repositories.create("team/fresh")
    with pytest.raises(EmptyRepository):
        await importer.import_source("team/fresh")


async def test_a_source_over_the_limit_is_refused_and_leaves_nothing(source: Sample, tmp_path: Path) -> None:
    source.commit({"big.bin": os.urandom(300_000)})
    small = Repositories(tmp_path / "small", Limits(max_repository_bytes=100_000))
    with pytest.raises(TooLarge, match="100,000 bytes"):
        await Importer(small, allow_local_paths=True).import_source(str(source.path))
    assert small.names() == []


async def test_hooks_and_configuration_of_the_source_run_nothing(importer: Importer, source: Sample, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    hook = source.path / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "uploadpack.packObjectsHook", "core.sshCommand", "credential.helper"):
        source.git("config", key, f"!touch {mark}" if key == "credential.helper" else f"touch {mark}")
    await importer.import_source(str(source.path))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("fatal: could not read Username for 'https://host': terminal prompts disabled", "AuthenticationRequired"),
        ("fatal: unable to access 'https://h/': The requested URL returned error: 403", "AuthenticationRequired"),
        ("git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.", "AuthenticationRequired"),
        ("fatal: repository 'https://h/x/' not found", "RepositoryNotFound"),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", "SourceUnreachable"),
        ("fatal: unable to access 'http://h/': Failed to connect to h port 80: Connection refused", "SourceUnreachable"),
        ("fatal: unable to access 'http://h/': The requested URL returned error: 503", "SourceUnreachable"),
        ("fatal: https://h/info/refs not valid: is this a git repository?", "NotARepository"),
        ("fatal: detected dubious ownership in repository at '/x'", "SourceRefused"),
        ("fatal: transport 'file' not allowed", "SourceRefused"),
        ("error: index-pack died of signal 25", "TooLarge"),
        ("fatal: something else", "GitFailed"),
    ],
)
def test_git_words_become_a_kind_of_error(stderr: str, kind: str) -> None:
    assert type(explain(stderr, "https://host/x", Limits())).__name__ == kind
