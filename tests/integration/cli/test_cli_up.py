"""`agent-coder up` as a person meets it: what it says, what it starts, what it leaves behind, and the client commands against it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from libs.testkit.product import COMMAND, Product, product
from services.cli.demo import SAMPLE, issue, lay_out
from services.cli.local_git import git

SCRIPTED = f"scripted:{SAMPLE / 'model.json'}"


async def program(home: Path, *arguments: str, cwd: Path | None = None, **variables: str) -> tuple[int, str, str]:
    """Run the program to its end: exit code, standard output, standard error."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MODEL", "AGENT_CODER_"))}
    environment = kept | {"AGENT_CODER_HOME": str(home), "COLUMNS": "200", **variables}
    process = await asyncio.create_subprocess_exec(
        COMMAND, *arguments, env=environment, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 150)
    return process.returncode or 0, out.decode(), err.decode()


def descendants(served: Product) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[int]:
    return [p.pid for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def stopped(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(20):
        while alive(processes):
            await asyncio.sleep(0.02)


async def test_a_run_is_solved_watched_and_fetched(tmp_path):
    repository = lay_out(tmp_path / "nämé ☃")
    config = (repository / ".git" / "config").read_text()
    title, body = issue()
    async with product(tmp_path / "home", SCRIPTED) as served:
        solve = ("solve", ".", "--title", title, "--body", body, "--issue", "修复-1", "--mail", "dev@example.org", "--watch", "--fetch")
        code, out, err = await program(served.home, *solve, cwd=repository)
        assert code == 0, out + err + served.log()
        for part in ("plan on main", "→ edit", "verified", "+    def test_decimals_are_parts_of_a_unit", "git switch fix/issue-"):
            assert part in out
        branch = out.rsplit("git switch ", 1)[1].strip()
        assert "PART = re.compile" in git("show", f"{branch}:durations/parsing.py", cwd=repository)
        assert (repository / ".git" / "config").read_text() == config
        assert git("branch", "--show-current", cwd=repository).strip() == "main"
        await _looked_at(served, repository, branch)


async def _looked_at(served: Product, repository: Path, branch: str) -> None:
    """The other commands on the run that is over."""
    (run,) = (await served.client.get("/api/runs")).json()["runs"]
    prefix = run["run_id"][:12]
    assert (await served.events(run["run_id"]))[0]["data"]["reporter_email"] == "dev@example.org"
    code, out, _ = await program(served.home, "runs")
    assert code == 0
    assert run["run_id"] in out
    assert branch in out
    assert "修复-1" in out
    code, out, _ = await program(served.home, "show", prefix)
    assert (code, "finished" in out, "agent-coder fetch" in out) == (0, True, True)
    code, out, _ = await program(served.home, "diff", prefix)
    assert out.startswith("diff --git")
    code, out, _ = await program(served.home, "watch", prefix, "--json")
    assert json.loads(out)["status"] == "finished"
    code, out, _ = await program(served.home, "fetch", prefix, "--into", str(repository), "--json")
    assert json.loads(out)["branch"] == branch
    code, out, err = await program(served.home, "cancel", prefix)
    assert (code, "finished already" in err) == (1, True)
    await _traced(served, prefix)


async def _traced(served: Product, prefix: str) -> None:
    """Spans are exported off the path: asked for until the last one is there."""
    async with asyncio.timeout(20):
        while True:
            code, out, _ = await program(served.home, "trace", prefix)
            if code == 0 and "process run.committed" in out:
                break
    assert "█" in out
    assert "tokens in" in out


async def test_an_approval_is_given_from_the_command_line(tmp_path):
    repository = lay_out(tmp_path / "sample")
    async with product(tmp_path / "home", SCRIPTED) as served:
        solve = ("solve", str(repository), "--title", issue()[0], "--policy", "plan_approval=true", "--json")
        code, out, err = await program(served.home, *solve)
        assert code == 0, err
        run_id = json.loads(out)["instanceId"]
        await served.wait(run_id, frozenset({"waiting"}))
        code, out, _ = await program(served.home, "show", run_id)
        assert f"agent-coder approve {run_id}" in out
        code, out, err = await program(served.home, "approve", run_id, "-m", "好")
        assert code == 0, err
        assert (await served.wait(run_id))["status"] == "finished"


async def line_of(process: asyncio.subprocess.Process, part: str) -> None:
    """Read until a line holds `part`."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while part not in (await process.stdout.readline()).decode():
            assert not process.stdout.at_eof(), part


def _hears_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def watching(served: Product, run_id: str) -> asyncio.subprocess.Process:
    environment = {"PATH": os.environ["PATH"], "AGENT_CODER_HOME": str(served.home)}
    return await asyncio.create_subprocess_exec(
        COMMAND, "watch", run_id, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=_hears_ctrl_c
    )


async def test_who_watches_sees_the_end_though_the_gateway_dies_and_may_leave_at_any_time(tmp_path):
    repository = lay_out(tmp_path / "sample")
    async with product(tmp_path / "home", SCRIPTED, "--apart", "gateway") as served:
        assert set(served.processes()) == {"nats", "gateway"}
        run_id = await served.solve("1", {"title": issue()[0], "repo": str(repository), "policy": {"plan_approval": True}})
        stays, leaves = await watching(served, run_id), await watching(served, run_id)
        await line_of(stays, f"agent-coder approve {run_id}")
        await line_of(leaves, f"agent-coder approve {run_id}")
        leaves.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(leaves.communicate(), 60)
        assert (leaves.returncode, f"agent-coder watch {run_id}" in err.decode()) == (130, True)
        os.kill(served.processes()["gateway"], signal.SIGKILL)
        await served.run(run_id)
        code, _, err_text = await program(served.home, "approve", run_id)
        assert code == 0, err_text
        out, err = await asyncio.wait_for(stays.communicate(), 60)
        assert stays.returncode == 0, err.decode()
        assert out.decode().count("approved by local") == 1
        assert "finished after 1 attempt" in out.decode()


async def test_without_a_model_an_issue_is_refused_with_what_to_set(tmp_path):
    repository = lay_out(tmp_path / "sample")
    async with product(tmp_path / "home", None) as served:
        assert "MODEL=" in served.log()
        code, _, err = await program(served.home, "solve", str(repository), "--title", "x")
        assert code == 1
        assert "MODEL=" in err


async def test_a_second_server_on_the_same_folder_or_port_says_so(tmp_path):
    async with product(tmp_path / "home", None) as served:
        code, _, err = await program(served.home, "up", "--port", "0")
        assert code == 1
        assert f"runs already on {served.home} at {served.client.base_url}".rstrip("/") in err
        port = str(served.client.base_url.port)
        code, _, err = await program(tmp_path / "other", "up", "--port", port)
        assert (code, f"Port {port} is taken" in err) == (1, True)
        code, out, _ = await program(served.home, "token")
        assert out.strip() == (served.home / "token").read_text().strip()
        code, out, _ = await program(served.home, "doctor", "--json")
        assert {check["name"]: check["ok"] for check in json.loads(out)}["server"] is True
        assert [check for check in json.loads(out) if check["ok"] and check["fix"]] == []


async def test_a_taken_broker_port_is_no_obstacle(tmp_path):
    """Of two servers one at least meets a port that is taken: by the other, or by whoever had it before."""
    async with product(tmp_path / "one", None) as one, product(tmp_path / "two", None) as two:
        addresses = [json.loads((served.home / "runtime.json").read_text())["nats_url"] for served in (one, two)]
        assert len(set(addresses)) == 2
        for served in (one, two):
            assert (await served.client.get("/readyz")).json()["checks"]["planner"] == "ok"
            assert (served.home / "runtime.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_nothing_is_left_after_a_signal(tmp_path, number):
    async with product(tmp_path / "home", None) as served:
        started = descendants(served)
        assert started
        served.process.send_signal(number)
        assert await asyncio.wait_for(served.process.wait(), 60) == 0
        assert alive(started) == []
        assert not (served.home / "runtime.json").exists()


async def test_a_second_signal_ends_a_stop_that_hangs(tmp_path):
    async with product(tmp_path / "home", None) as served:
        started = descendants(served)
        broker = next(p for p in started if p.name() == "nats-server")
        broker.suspend()
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            while "stopping" not in served.log():
                await asyncio.sleep(0.02)
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), 60) == 1
        await stopped(started)
        assert "told to stop twice" in served.log()


@pytest.mark.parametrize("how", [(), ("--split",)])
async def test_wrong_settings_of_all_services_are_listed_by_the_names_they_are_set_by_before_anything_starts(tmp_path, how):
    wrong = {"HEARTBEAT_SECONDS": "-1", "BODY_LIMIT_BYTES": "x", "GITHUB_APP_ID": "app", "MAIL_LISTEN": "25", "SANDBOX_PROCESSES": "1"}
    code, _, err = await program(
        tmp_path / "home", "up", "--port", "0", *how, **{f"AGENT_CODER_{name}": text for name, text in wrong.items()}
    )
    assert code == 1
    assert [name for name in wrong if f"  - AGENT_CODER_{name}: " not in err] == []
    assert "write HOST:PORT" in err
    assert "Traceback" not in err
    assert not (tmp_path / "home" / "nats.log").exists()


async def test_a_service_that_there_is_not_cannot_be_apart(tmp_path):
    code, _, err = await program(tmp_path / "home", "up", "--port", "0", "--apart", "gateway", "--apart", "kitchen")
    assert code == 2
    assert "no service kitchen" in err
    assert "session_store" in err
    assert not (tmp_path / "home").exists()


async def test_a_killed_server_is_followed_by_a_clean_one(tmp_path):
    async with product(tmp_path / "home", None) as served:
        left = [p for p in descendants(served) if p.name() == "nats-server"]
        served.process.kill()
        await served.process.wait()
        assert alive(left)
    async with product(tmp_path / "home", None) as served:
        assert "ended what an earlier server left" in served.log()
        await stopped(left)


async def test_split_processes_come_back_know_no_keys_and_leave_with_the_server(tmp_path):
    secrets = {"OPENAI_API_KEY": "s", "AGENT_CODER_GITHUB_WEBHOOK_SECRET": "s", "AGENT_CODER_SMTP_PASSWORD": "s"}
    async with product(tmp_path / "home", SCRIPTED, "--split", environment=secrets) as served:
        first = served.processes()
        assert {
            "nats",
            "gateway",
            "inference",
            "sandbox",
            "artifact",
            "planner",
            "editor",
            "verifier",
            "assistant",
            "session_store",
            "forge",
            "mailer",
        } == set(first)
        for name, pid in first.items():
            if name != "nats":
                environment = psutil.Process(pid).environ()
                assert ("OPENAI_API_KEY" in environment, "MODEL" in environment) == ((name == "inference"),) * 2
                assert ("AGENT_CODER_GITHUB_WEBHOOK_SECRET" in environment) == (name == "forge")
                assert ("AGENT_CODER_SMTP_PASSWORD" in environment) == (name == "mailer")
        for name in ("editor", "nats"):
            os.kill(first[name], signal.SIGKILL)
        async with asyncio.timeout(60):
            while any(served.processes()[name] == first[name] for name in ("editor", "nats")):
                await asyncio.sleep(0.05)
        repository = lay_out(tmp_path / "sample")
        async with asyncio.timeout(60):
            while (await served.client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        run_id = await served.solve("1", {"title": issue()[0], "body": issue()[1], "repo": str(repository)})
        assert (await served.wait(run_id))["status"] == "finished"
        started = descendants(served)
    await stopped(started)


async def test_the_demo_shows_a_solved_issue_and_leaves_nothing(tmp_path):
    code, out, err = await program(tmp_path / "unused", "demo")
    assert code == 0, out + err
    for part in ("event trail", "opened → planned → edited → verified → committed → finished", "clone URL", "/git/", "cloned and checked"):
        assert part in out
    assert not (tmp_path / "unused").exists()


def test_the_program_is_installed_beside_the_interpreter():
    assert Path(COMMAND) == Path(sys.executable).parent / "agent-coder"
