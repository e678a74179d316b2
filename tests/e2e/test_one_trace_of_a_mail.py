"""A run that came by mail is one trace, from the mail in over each step to the mail out, the reply and what came of it; `show` tells it."""

import asyncio
import json
import re
import sys

import aiosmtplib
import pytest

from libs.testkit.broker import free_port
from libs.testkit.product import FAST, product
from tests.faults.story import repository, script
from tests.integration.mailer.mail_server import mail_server
from tests.integration.mailer.mailbox import mail

INTAKE, DEV = "solve@agents.example.org", "dev@example.org"
EXPECTED = {
    "mail in",
    "process mail intake",
    "process run.opened",
    "send run.planned",
    "send run.edited",
    "process run.verified",
    "process run.committed",
    "notify run.finished",
    "mail finished",
    "send run.notified",
    "send run.reply_received",
    "send run.follow_up",
}


async def hand_in(port, message, to):
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=port, start_tls=False, timeout=60) as client:
        await client.send_message(message, sender=DEV, recipients=[to])


async def until(check, seconds=120.0):
    """What `check` gives when it is something true."""
    async with asyncio.timeout(seconds):
        while not (found := await check()):
            await asyncio.sleep(0.2)
    return found


async def program(home, *arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", *arguments, env={"AGENT_CODER_HOME": str(home), "TZ": "UTC"}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.fixture
async def post():
    async with mail_server() as server:
        yield server


async def test_a_run_by_mail_is_one_trace_and_one_story(tmp_path, post):
    repo, door, home = repository(tmp_path / "repo"), free_port(), tmp_path / "home"
    home.mkdir()
    (home / "mail.toml").write_text(f'[[intake]]\naddress = "{INTAKE}"\nrepo = "{repo}"\nallow = ["{DEV}"]\n')
    environment = {
        **FAST,
        "AGENT_CODER_MAIL_DOMAIN": "agents.example.org",
        "AGENT_CODER_SMTP_HOST": "127.0.0.1",
        "AGENT_CODER_SMTP_PORT": str(post.port),
        "AGENT_CODER_SMTP_SECURITY": "none",
        "AGENT_CODER_MAIL_LISTEN": f"127.0.0.1:{door}",
        "AGENT_CODER_MAIL_POLICY": "token_only",
    }
    async with product(home, f"scripted:{script(tmp_path)}", environment=environment) as running:
        await hand_in(door, mail("add(1, 2) is -1.", Subject="加法错了", Message_ID="<issue@example.org>"), INTAKE)

        async def runs():
            return (await running.client.get("/api/runs")).json()["runs"]

        run_id = (await until(runs))[0]["run_id"]
        shown = await running.wait(run_id)
        assert (shown["status"], shown["requested_by"]) == ("finished", f"mail:{DEV}"), running.log()

        async def told():
            return post.messages

        letter = (await until(told))[0]
        assert letter["In-Reply-To"] == "<issue@example.org>"
        await hand_in(door, mail("请写注释。", Message_ID="<reply@example.org>"), re.sub(r".*<|>.*", "", letter["Reply-To"]))

        async def spans():
            trace = (await running.client.get(f"/api/runs/{run_id}/trace")).json().get("spans", [])
            return trace if {s["name"] for s in trace} >= EXPECTED else None

        try:
            trace = await until(spans)
        except TimeoutError:
            found = {s["name"] for s in (await running.client.get(f"/api/runs/{run_id}/trace")).json().get("spans", [])}
            raise AssertionError(f"missing: {EXPECTED - found}\n{running.log()}") from None
        assert [s["name"] for s in trace if s.get("parent_id") is None] == ["mail in"]

        story = await program(home, "show", run_id)
        wanted = [
            f"asked by mail by {DEV}",
            "plan on main",
            f"mail to {DEV}: finished",
            f"{DEV} answered by mail (message)",
            "请写注释。",
        ]
        places = [story.find(words) for words in wanted]
        assert places == sorted(places), story
        assert -1 not in places, story
        told_to_programs = json.loads(await program(home, "show", run_id, "--json"))["story"]
        assert [c["type"] for c in told_to_programs][:2] == ["run.opened", "run.planned"]
