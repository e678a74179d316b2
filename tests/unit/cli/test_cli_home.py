"""The lock, what a running server writes, and which variables reach which process."""

import json
import multiprocessing
import os

import pytest

from services.cli.client import address
from services.cli.errors import CliError
from services.cli.home import HomeFolder, Runtime
from services.cli.settings import CliSettings
from services.cli.supervisor import backoff_seconds, environment_of

RUNTIME = Runtime(pid=1, url="http://127.0.0.1:9000", nats_url="nats://127.0.0.1:4300", monitor_url="http://127.0.0.1:8300")


def _hold(path, ready, leave):
    with HomeFolder(path).locked():
        ready.set()
        leave.wait(30)


def _die(path):
    lock = HomeFolder(path).locked()
    lock.__enter__()
    os._exit(9)


def test_a_second_server_is_told_who_holds_the_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready, leave))
    holder.start()
    try:
        assert ready.wait(30)
        HomeFolder(tmp_path).write_runtime(RUNTIME)
        with pytest.raises(CliError, match=rf"http://127.0.0.1:9000 \(process {holder.pid}\)"), HomeFolder(tmp_path).locked():
            pass
    finally:
        leave.set()
        holder.join()
    with HomeFolder(tmp_path).locked():
        pass


def test_the_lock_of_a_dead_server_is_no_lock(tmp_path):
    died = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path,))
    died.start()
    died.join()
    assert (tmp_path / "up.lock").read_text().strip() == str(died.pid)
    with HomeFolder(tmp_path).locked():
        assert (tmp_path / "up.lock").read_text().strip() == str(os.getpid())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="cannot be used"), HomeFolder(tmp_path / "file" / "home").locked():
        pass


def test_what_a_server_writes_is_for_its_owner_only(tmp_path):
    home = HomeFolder(tmp_path)
    home.write_runtime(RUNTIME)
    assert (tmp_path / "runtime.json").stat().st_mode & 0o777 == 0o600
    assert home.runtime() == RUNTIME
    home.clear_runtime()
    assert home.runtime() is None


def test_a_broken_runtime_file_is_none(tmp_path):
    (tmp_path / "runtime.json").write_text(json.dumps({"unknown": 1}))
    assert HomeFolder(tmp_path).runtime() is None


def test_clients_find_the_server_by_environment_then_home_then_default(tmp_path, monkeypatch):
    for name in ("URL", "TOKEN", "HOME"):
        monkeypatch.delenv(f"AGENT_CODER_{name}", raising=False)
    assert address(CliSettings(home=tmp_path)).url == "http://127.0.0.1:8787"
    HomeFolder(tmp_path).write_runtime(RUNTIME)
    (tmp_path / "token").write_text("secret\n")
    found = address(CliSettings(home=tmp_path))
    assert (found.url, found.token) == ("http://127.0.0.1:9000", "secret")
    monkeypatch.setenv("AGENT_CODER_URL", "https://example.org/")
    monkeypatch.setenv("AGENT_CODER_TOKEN", "other")
    found = address(CliSettings(home=tmp_path))
    assert (found.url, found.token) == ("https://example.org", "other")


def test_provider_keys_reach_inference_alone(tmp_path):
    (tmp_path / "models.toml").write_text('[[models]]\nname = "m"\napi_key_env = "MY_SECRET"\n')
    everything = {"PATH": "/bin", "MODEL": "m", "MODEL_API_KEY": "k", "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "k", "MY_SECRET": "k"}
    assert environment_of("inference", everything, tmp_path) == everything
    assert environment_of("editor", everything, tmp_path) == {"PATH": "/bin"}


def test_secrets_of_github_and_mail_reach_forge_and_mailer_alone(tmp_path):
    github = {"AGENT_CODER_GITHUB_WEBHOOK_SECRET": "s", "AGENT_CODER_GITHUB_APP_ID": "7", "agent_coder_github_old_webhook_secret": "o"}
    mail = {"AGENT_CODER_SMTP_PASSWORD": "p", "AGENT_CODER_MAIL_WEBHOOK_SECRET": "w", "AGENT_CODER_MAIL_DKIM_KEY_FILE": "k"}
    shared = {"PATH": "/bin", "AGENT_CODER_PUBLIC_URL": "https://example.org", "AGENT_CODER_GITHUB_BASE_URL": "https://example.org/api/v3"}
    everything = github | mail | shared | {"OPENAI_API_KEY": "k"}
    assert environment_of("forge", everything, tmp_path) == github | shared
    assert environment_of("mailer", everything, tmp_path) == mail | shared
    assert environment_of("gateway", everything, tmp_path) == shared
    assert environment_of("inference", everything, tmp_path) == shared | {"OPENAI_API_KEY": "k"}


def test_a_broken_models_file_stops_nobody(tmp_path):
    (tmp_path / "models.toml").write_text("[[models]\n")
    assert environment_of("editor", {"PATH": "/bin"}, tmp_path) == {"PATH": "/bin"}


def test_pauses_grow_up_to_ten_seconds():
    assert [backoff_seconds(n) for n in (1, 2, 3, 20)] == [0.2, 0.4, 0.8, 10.0]
