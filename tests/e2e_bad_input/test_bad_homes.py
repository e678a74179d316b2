"""A home folder under attack: killed in mid-run, started twice, spoilt files, a full disk."""

import asyncio
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from libs.testkit.product import COMMAND, FAST, product
from tests.e2e_bad_input.hostile import ADDER, PATIENT_SECONDS, repository, script

pytestmark = pytest.mark.timeout(180)
MEBI = 1024 * 1024


def _request(repo: Path, **policy):
    return {"title": "add subtracts", "repo": str(repo), "policy": {"max_attempts": 1, **policy}}


async def _up(home: Path, **variables: str) -> tuple[int, str]:
    """Start a server that is expected to end by itself: its exit code and words."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MODEL", "AGENT_CODER_"))}
    environment |= {"AGENT_CODER_HOME": str(home), **variables}
    process = await asyncio.create_subprocess_exec(
        COMMAND, "up", "--port", "0", env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode or 0, told.decode(errors="replace")


async def test_a_server_killed_in_mid_run_goes_on_in_the_same_home(tmp_path):
    home, repo = tmp_path / "home", repository(tmp_path / "repo", ADDER)
    model = f"scripted:{script(tmp_path, {})}"
    slow = _request(repo, test_commands=["sleep 2; python3 -m unittest"], setup_commands=[])
    async with product(home, model, environment=FAST) as running:
        run_id = await running.solve("7", slow)
        await running.wait(run_id, frozenset({"verifying"}))
        running.process.kill()
        await running.process.wait()
    async with product(home, model, environment=FAST) as running:
        shown = await running.wait(run_id, seconds=PATIENT_SECONDS)
        assert shown["status"] == "finished", shown["why"]
        kinds = [event["type"] for event in await running.events(run_id)]
        assert kinds.count("run.committed") == kinds.count("run.edited") == 1


async def test_a_second_server_on_one_home_says_who_holds_it_and_harms_nothing(tmp_path):
    home = tmp_path / "home"
    async with product(home, f"scripted:{script(tmp_path, {})}", environment=FAST) as running:
        code, told = await _up(home)
        assert code == 1
        assert str(running.process.pid) in told
        assert "Traceback" not in told
        run_id = await running.solve("7", _request(repository(tmp_path / "repo", ADDER)))
        assert (await running.wait(run_id))["status"] == "finished"


async def test_settings_and_files_that_are_spoilt_are_named_at_the_start(tmp_path):
    (tmp_path / "file").write_text("x")
    spoilt = {"credentials.json": "{", "token": "", "models.toml": "= ="}
    for name, text in spoilt.items():
        home = tmp_path / name.partition(".")[0]
        home.mkdir()
        (home / name).write_text(text)
    attempts = await asyncio.gather(
        _up(tmp_path / "file"),
        _up(tmp_path / "token"),
        _up(tmp_path / "credentials"),
        _up(tmp_path / "models"),
        _up(tmp_path / "a", MODEL="scripted:/nowhere.json"),
        _up(tmp_path / "b", AGENT_CODER_SANDBOX_PROCESSES="many"),
        _up(tmp_path / "c", AGENT_CODER_BODY_LIMIT_BYTES="-1"),
    )
    for code, told in attempts:
        assert code != 0, told
        assert "Traceback" not in told, told
        assert "error:" in told.lower(), told
    words = ("file", "token", "credentials.json", "models.toml", "nowhere.json", "SANDBOX_PROCESSES", "BODY_LIMIT_BYTES")
    for word, (_, told) in zip(words, attempts, strict=True):
        assert word in told, told


@contextmanager
def _small_disk(place: Path, size: int):
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_refuses_new_work_and_goes_on_when_there_is_room(tmp_path):
    repo = repository(tmp_path / "repo", ADDER)
    with _small_disk(tmp_path / "disk", 250 * MEBI) as mounted:
        if not mounted:
            return  # only the superuser can make a small disk; the rest of this file holds without one
        home = tmp_path / "disk" / "home"
        async with product(home, f"scripted:{script(tmp_path, {})}", environment=FAST) as running:
            before = await running.solve("7", _request(repo))
            assert (await running.wait(before))["status"] == "finished"
            filler = tmp_path / "disk" / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:
                    pass
            opened = []
            for number in range(5):
                answer = await running.client.post(f"/api/issues/{number}/solve", json=_request(repo))
                assert answer.status_code in {202, 503, 507}, answer.text
                if answer.status_code != 202:
                    assert answer.json()["next"]
                    break
                opened.append(answer.json()["instanceId"])
            assert running.process.returncode is None
            filler.unlink()
            await _until_taken(running.client, repo)
            for run_id in opened:
                shown = await running.wait(run_id, seconds=PATIENT_SECONDS)
                assert shown["status"] in {"finished", "failed"}
            after = await running.solve("8", _request(repo))
            shown = await running.wait(after, seconds=PATIENT_SECONDS)
            assert shown["status"] == "finished", f"{shown['why']}\n{running.log()}"


async def _until_taken(client: httpx.AsyncClient, repo: Path) -> None:
    async with asyncio.timeout(60):
        while (await client.post("/api/issues/9/solve", json=_request(repo))).status_code != 202:
            await asyncio.sleep(0.5)


async def test_nothing_is_left_when_a_split_server_is_killed_and_started_again(tmp_path):
    home = tmp_path / "home"
    model = f"scripted:{script(tmp_path, {})}"
    async with product(home, model, "--split", environment=FAST) as running:
        first = set(running.processes().values())
        os.kill(running.process.pid, signal.SIGKILL)
        await running.process.wait()
    async with product(home, model, environment=FAST) as running:
        assert not [pid for pid in first if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        run_id = await running.solve("7", _request(repository(tmp_path / "repo", ADDER)))
        assert (await running.wait(run_id))["status"] == "finished"
