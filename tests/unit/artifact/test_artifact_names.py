"""Names from outside: which are accepted, and what they become."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.artifact.domain import Login
from services.artifact.errors import ArtifactError, InvalidName, SourceRefused
from services.artifact.names import (
    LocalSource,
    RemoteSource,
    StoredSource,
    check_repository_name,
    check_run_ref,
    parse_source,
    ref_component,
)
from tests.unit.artifact.sample import run_git


@pytest.mark.parametrize("name", ["calc", "calc-1a2b", "team/calc.py", "a/b/c/d", "0_x"])
def test_a_repository_name_is_accepted(name: str) -> None:
    assert check_repository_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "a..b",
        ".git",
        "a.git",
        "a.lock",
        "A",
        "nämé",
        "a b",
        "a\n",
        "-a",
        "a/-b",
        "a\0",
        "a/b/c/d/e",
        "x" * 201,
    ],
)
def test_a_name_that_could_leave_its_folder_or_confuse_git_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="not a repository name"):
        check_repository_name(name)


@pytest.mark.parametrize(
    "source",
    [
        "--upload-pack=touch /tmp/x",
        "-oProxyCommand=touch /tmp/x",
        "ext::sh -c touch% /tmp/x",
        "EXT::sh",
        "fd::17",
        "::x",
        "git://host/repo.git",
        "ftp://host/repo.git",
        "ssh://-oProxyCommand=x/repo",
        "ssh://-oProxyCommand=x@host/repo",
        "ssh://host/-repo",
        "ssh://user:secret@host/repo",
        "https:///repo",
        "https://host",
        "https://host:port/repo",
        "https://[::1/repo",
        "https://host/re\npo",
        "../relative",
        "~/home",
        "",
        "  ",
    ],
)
def test_a_source_of_another_kind_is_refused_and_its_secret_is_not_repeated(source: str) -> None:
    with pytest.raises(SourceRefused) as refused:
        parse_source(source, allow_local_paths=True)
    assert "secret" not in str(refused.value)


def test_a_credential_is_taken_out_of_the_url() -> None:
    source = parse_source("https://someone:s3cret@Host.example:8443/Team/My%20Repo.git", allow_local_paths=False)
    assert isinstance(source, RemoteSource)
    assert source.url == "https://host.example:8443/Team/My%20Repo.git"
    assert source.login == Login("someone", "s3cret")
    assert "s3cret" not in repr(source)
    assert "c29tZW9uZTpzM2NyZXQ=" not in repr(source)
    assert source.name.startswith("my-repo-")


def test_the_name_follows_from_the_address_and_not_from_the_credential() -> None:
    names = {
        getattr(parse_source(text, allow_local_paths=False), "name", "")
        for text in (
            "https://host/t/repo.git",
            "https://host/t/repo",
            "https://host/t/repo/",
            "https://u:p@host/t/repo",
            "ssh://host/t/repo",
        )
    }
    assert len(names) == 1
    assert parse_source("https://host/other/repo", allow_local_paths=False) != parse_source("https://host/t/repo", allow_local_paths=False)


def test_the_short_ssh_form_is_an_ssh_url() -> None:
    source = parse_source("git@host.example:team/repo.git", allow_local_paths=False)
    assert source == RemoteSource("ssh://git@host.example/team/repo.git", "ssh")


def test_local_paths_are_accepted_only_where_they_are_allowed() -> None:
    assert isinstance(parse_source("/srv/repo", allow_local_paths=True), LocalSource)
    assert isinstance(parse_source("file:///srv/repo", allow_local_paths=True), LocalSource)
    for path in ("/srv/repo", "file:///srv/repo"):
        with pytest.raises(SourceRefused, match="allow_local_paths"):
            parse_source(path, allow_local_paths=False)


def test_a_directory_with_no_latin_letter_still_gets_a_name() -> None:
    source = parse_source("/srv/计算器", allow_local_paths=True)
    assert isinstance(source, LocalSource)
    assert check_repository_name(source.name).startswith("repo-")


def test_a_plain_word_is_a_repository_of_the_store() -> None:
    assert parse_source("team/calc", allow_local_paths=True) == StoredSource("team/calc")


@pytest.mark.parametrize(("identifier", "component"), [("42", "42"), ("PROJ-7", "PROJ-7"), ("v1.2", "v1.2"), ("修复", "修复")])
def test_a_plain_id_stays_readable_in_a_reference(identifier: str, component: str) -> None:
    assert ref_component(identifier) == component


@given(st.text())
def test_any_id_becomes_one_short_component(identifier: str) -> None:
    component = ref_component(identifier)
    assert 0 < len(component.encode()) < 120
    assert not set(component) & set(" ~^:?*[\\/@{}" + string.whitespace)
    assert not component.startswith(".")
    assert not component.endswith((".", ".lock"))
    assert ".." not in component


@given(st.text(), st.text())
def test_different_ids_become_different_components(one: str, other: str) -> None:
    assert (ref_component(one) == ref_component(other)) == (one == other)


@pytest.mark.parametrize("identifier", ["a b", "a/b", "..", ".lock", "x.lock", "@{1}", "-x", "a..b", "\x00", "é́", "", "x" * 500, "☃"])
def test_git_accepts_the_component_of_an_awkward_id(identifier: str, tmp_path) -> None:
    assert run_git(tmp_path, "check-ref-format", f"refs/heads/fix/issue-{ref_component(identifier)}", check=False).returncode == 0


@pytest.mark.parametrize(
    "ref", ["refs/heads/main", "refs/runs/x", "refs/runs/../1", "refs/runs/a/b", "refs/runs/a/1/2", "refs/runs/.a/1", "refs/runs/a.lock/1"]
)
def test_only_a_numbered_reference_of_a_run_is_one(ref: str) -> None:
    assert check_run_ref("refs/runs/run-1/3") == "refs/runs/run-1/3"
    with pytest.raises(ArtifactError):
        check_run_ref(ref)
