"""What the doctor says of the model and of the integrations, and what `up` tells of them."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from services.cli import doctor, up
from services.cli.home import HomeFolder, Runtime

RUNTIME = Runtime(pid=1, url="http://127.0.0.1:9000", nats_url="nats://127.0.0.1:4300", monitor_url="http://127.0.0.1:8300")


@pytest.fixture(autouse=True)
def no_model_in_this_shell(monkeypatch, tmp_path):
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path))


def test_the_model_of_the_running_server_counts():
    found = doctor.model(replace(RUNTIME, model="model: ollama/qwen3-coder, then openai/gpt-4o"))
    assert (found.ok, found.detail) == (True, "ollama/qwen3-coder, then openai/gpt-4o (of the running server)")


def test_a_running_server_without_a_model_or_key_is_told_with_what_to_set():
    none = doctor.model(replace(RUNTIME, model="No model is configured. Set MODEL …"))
    assert (none.ok, none.detail, none.fix) == (False, "the running server has none", "No model is configured. Set MODEL …")
    keyless = doctor.model(replace(RUNTIME, model="model: openai/gpt-4o\nSet OPENAI_API_KEY"))
    assert (keyless.ok, keyless.fix) == (False, "Set OPENAI_API_KEY")


def test_without_a_server_this_shell_counts(monkeypatch):
    assert doctor.model(None).detail == "none is configured in this shell"
    monkeypatch.setenv("MODEL", "ollama/qwen3-coder")
    assert doctor.model(None).ok


class Answers(BaseHTTPRequestHandler):
    """A server that tells one set-up to whoever brings the token."""

    said: ClassVar[dict] = {}

    def do_GET(self):
        allowed = self.headers["Authorization"] == "Bearer t0ken" and self.path == "/api/integrations"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(self.said if allowed else {}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def home(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = HomeFolder(tmp_path)
    folder.write_runtime(replace(RUNTIME, url=f"http://127.0.0.1:{server.server_port}"))
    folder.write_secret("token", "t0ken\n")
    yield folder
    server.shutdown()
    server.server_close()


def test_each_check_of_an_integration_is_shown_with_its_fix(home, monkeypatch):
    bad = {"name": "permissions", "ok": False, "detail": "pull_requests is \x1b[2Jmissing", "fix": "grant it, see docs/github.md"}
    off = {"configured": False, "summary": "no mail server is set", "checks": []}
    monkeypatch.setattr(Answers, "said", {"github": {"configured": True, "summary": "App 7", "checks": [bad]}, "mail": off})
    github, mail = doctor.integrations(home)
    assert (github.name, github.ok, github.needed, github.fix) == ("github: permissions", False, True, "grant it, see docs/github.md")
    assert "\x1b" not in github.detail
    assert (mail.name, mail.ok, mail.needed, mail.detail) == ("mail", False, False, "no mail server is set")
    assert "docs/mail.md" in mail.fix


def test_a_server_that_does_not_tell_is_one_finding_and_no_server_is_none(home, tmp_path):
    home.write_secret("token", "another")
    (found,) = doctor.integrations(home)
    assert (found.name, found.ok) == ("integrations", False)
    assert doctor.integrations(HomeFolder(tmp_path / "elsewhere")) == []


def test_up_tells_where_webhooks_and_mail_come_in(monkeypatch, tmp_path):
    runtime = replace(RUNTIME, url="http://127.0.0.1:9000")
    monkeypatch.delenv("AGENT_CODER_PUBLIC_URL", raising=False)
    assert up._variables(HomeFolder(tmp_path), runtime)["AGENT_CODER_PUBLIC_URL"] == "http://127.0.0.1:9000"
    monkeypatch.setenv("AGENT_CODER_HOST", "0.0.0.0")
    assert up._variables(HomeFolder(tmp_path), runtime)["AGENT_CODER_PUBLIC_URL"] == ""
    assert up.describe_team() == []
    for name, value in {
        "PUBLIC_URL": "https://coder.example.org/",
        "GITHUB_APP_ID": "7",
        "SMTP_HOST": "smtp.example.org",
        "MAIL_DOMAIN": "example.org",
        "MAIL_LISTEN": "0.0.0.0:2525",
    }.items():
        monkeypatch.setenv(f"AGENT_CODER_{name}", value)
    assert up._variables(HomeFolder(tmp_path), runtime)["AGENT_CODER_PUBLIC_URL"] == "https://coder.example.org/"
    assert up.describe_team() == [
        "GitHub: webhooks come to https://coder.example.org/webhooks/github",
        "mail out: smtp.example.org:587",
        "mail in: SMTP at 0.0.0.0:2525",
    ]


def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    monkeypatch.setenv("AGENT_CODER_GITHUB_APP_ID", "")
    assert up.describe_team() == []
