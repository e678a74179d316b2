"""The caller's own repository."""

import subprocess

import pytest

from services.cli.demo import issue, lay_out
from services.cli.errors import CliError, Usage
from services.cli.local_git import authorized, fetch, git, repository, uncommitted


@pytest.fixture
def sample(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    return lay_out(tmp_path / "nämé ☃")


def test_a_path_becomes_the_absolute_root_of_its_repository(sample, monkeypatch):
    monkeypatch.chdir(sample / "durations")
    assert repository(".") == str(sample)
    assert repository("../tests") == str(sample)


def test_urls_and_names_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("https://example.org/a.git", "git@example.org:a/b.git", "team/app", "file:///srv/app"):
        assert repository(given) == given


def test_a_bare_repository_is_named_by_its_folder(sample, tmp_path):
    git("clone", "--quiet", "--bare", str(sample), str(tmp_path / "bare.git"))
    assert repository(str(tmp_path / "bare.git")) == str(tmp_path / "bare.git")


def test_what_is_no_repository_is_a_wrong_call(tmp_path):
    (tmp_path / "plain").mkdir()
    with pytest.raises(Usage, match="no git repository"):
        repository(str(tmp_path / "plain"))
    with pytest.raises(Usage, match="no folder"):
        repository(str(tmp_path / "missing"))


def test_uncommitted_changes_are_counted(sample):
    assert uncommitted(sample) == 0
    (sample / "new.py").write_text("")
    (sample / "README.md").write_text("changed")
    assert uncommitted(sample) == 2


def test_a_branch_is_fetched_under_its_own_name_and_nothing_else_changes(sample, tmp_path):
    copy = tmp_path / "copy"
    git("clone", "--quiet", str(sample), str(copy))
    git("branch", "fix/issue-1", cwd=sample)
    config = (copy / ".git/config").read_text()
    fetch(copy, f"file://{sample}", "fix/issue-1", "secret")
    assert git("rev-parse", "fix/issue-1", cwd=copy) == git("rev-parse", "main", cwd=sample)
    assert (copy / ".git/config").read_text() == config


def test_a_local_branch_with_its_own_commits_is_not_touched(sample, tmp_path):
    copy = tmp_path / "copy"
    git("clone", "--quiet", str(sample), str(copy))
    git("branch", "fix", cwd=sample)
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    git("switch", "--quiet", "-c", "fix", cwd=copy)
    git(*who, "commit", "--quiet", "--allow-empty", "-m", "own", cwd=copy)
    git("switch", "--quiet", "main", cwd=copy)
    own = git("rev-parse", "fix", cwd=copy)
    git(*who, "commit", "--quiet", "--allow-empty", "-m", "theirs", cwd=sample)
    git("branch", "-f", "fix", cwd=sample)
    with pytest.raises(CliError, match="git fetch"):
        fetch(copy, f"file://{sample}", "fix", "secret")
    assert git("rev-parse", "fix", cwd=copy) == own


def test_a_branch_of_another_repository_is_not_fetched_into_this_one(sample, tmp_path):
    base = git("rev-parse", "main", cwd=sample).strip()
    other = tmp_path / "other"
    git("init", "--quiet", str(other))
    git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--allow-empty", "-m", "apart", cwd=other)
    git("branch", "fix", cwd=sample)
    with pytest.raises(Usage, match="another repository") as caught:
        fetch(other, f"file://{sample}", "fix", "secret", base)
    assert "--into" in caught.value.hint
    assert git("branch", "--list", "fix", cwd=other) == ""
    with pytest.raises(Usage, match="no git repository"):
        fetch(tmp_path, f"file://{sample}", "fix", "secret", base)


def test_the_token_is_for_the_one_server_and_stands_in_the_environment():
    environment = authorized("http://127.0.0.1:8787/git/app.git", "secret")
    assert environment["GIT_CONFIG_KEY_0"] == "http.http://127.0.0.1:8787/.extraHeader"
    assert "secret" not in environment["GIT_CONFIG_VALUE_0"]
    assert environment["GIT_CONFIG_VALUE_0"].startswith("Authorization: Basic ")


def test_the_sample_has_a_bug_that_its_tests_do_not_see(sample):
    done = subprocess.run(["python3", "-B", "-m", "unittest"], cwd=sample, capture_output=True, check=False)
    assert done.returncode == 0
    code = "from durations import parse; print(parse('1.5h'))"
    said = subprocess.run(["python3", "-B", "-c", code], cwd=sample, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "18000"
    assert issue()[0] == 'parse reads "1.5h" as five hours'
    assert git("status", "--porcelain", cwd=sample) == ""
