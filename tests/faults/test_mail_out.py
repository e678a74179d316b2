"""The mailer killed at named points, everything twice, two mailers at once, NATS away while the server answers: one mail each."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.testkit.broker import until
from libs.testkit.product import FAST
from tests.integration.mailer.post_office import Post, post_office
from tests.integration.mailer.test_sending import queue

pytestmark = pytest.mark.timeout(400)
POINTS = {
    "telling": ("before_queue:failed", "after_queue:failed"),
    "sending": ("before_send:failed", "after_row:failed"),
    "recording": ("before_append:run.notified", "after_append:run.notified"),
}


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    async with post_office(tmp_path) as office:
        yield office


@asynccontextmanager
async def mailers(post: Post, count: int = 1, **environment: str) -> AsyncIterator[list[int]]:
    """Processes of the mailer, started again whenever they die; the list counts the deaths by exit code."""
    settings = post.settings
    whole = {
        "AGENT_CODER_HOME": str(post.home),
        "AGENT_CODER_NATS_URL": post.bus.nats_url,
        **FAST,
        "AGENT_CODER_MAIL_DOMAIN": settings.mail_domain or "",
        "AGENT_CODER_SMTP_HOST": "127.0.0.1",
        "AGENT_CODER_SMTP_PORT": str(settings.smtp_port),
        "AGENT_CODER_SMTP_SECURITY": "none",
        "AGENT_CODER_SMTP_TIMEOUT_SECONDS": "3",
        "AGENT_CODER_SMTP_DATA_TIMEOUT_SECONDS": "5",
        "AGENT_CODER_MAIL_RETRY_BASE_SECONDS": "0.1",
        **environment,
    }
    deaths: list[int] = []

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.mailer", env={**os.environ, **whole})
            try:
                deaths.append(await process.wait())
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    tasks = [asyncio.create_task(keep()) for _ in range(count)]
    try:
        yield deaths
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def crashing(place: Path, *points: str) -> dict[str, str]:
    """The environment that kills a mailer at each of `points`, once."""
    place.mkdir()
    return {"AGENT_CODER_CRASH_AT": ",".join(f"mailer:{p}" for p in points), "AGENT_CODER_CRASH_DIR": str(place)}


@pytest.mark.parametrize("group", POINTS)
async def test_a_mailer_killed_before_and_after_sends_one_mail(post, tmp_path, group):
    await post.open()
    await post.fails()
    async with mailers(post, **crashing(tmp_path / "reached", *POINTS[group])) as deaths:
        (told,) = await post.notified(1, seconds=180)
        await until(lambda: len(deaths) >= len(POINTS[group]), 60)
        await post.open("R2")
        await post.fails("R2")
        await post.notified(1, "R2", seconds=120)
    assert len(list((tmp_path / "reached").iterdir())) == len(POINTS[group])
    assert told.outcome == "sent"
    assert len(post.server.got) == 2
    assert len((await post.state()).notifications) == 1


async def test_a_mailer_killed_between_the_servers_answer_and_its_own_record_repeats_the_same_message_id(post, tmp_path):
    """The one window that SMTP leaves: the server has the mail, and nobody else knows."""
    await post.open()
    await post.fails()
    async with mailers(post, **crashing(tmp_path / "reached", "after_send:failed")):
        (told,) = await post.notified(1, seconds=180)
    assert [m["Message-ID"] for m in post.server.messages] == [told.message_id] * 2
    assert "not known whether the server had it" in told.detail


async def test_everything_twice_and_two_mailers_at_once(post):
    runs = [f"R{number}" for number in range(1, 6)]
    async with mailers(post, 2, AGENT_CODER_DUPLICATE="1"):
        for run_id in runs:
            await post.open(run_id)
            await post.publishes(run_id)
            await post.publishes(run_id)
        for run_id in runs:
            await post.notified(1, run_id, seconds=180)
        await post.open("last")
        await post.fails("last")
        await post.notified(1, "last", seconds=120)
    assert len(post.server.got) == len(runs) + 1
    assert [len((await post.state(run_id)).notifications) for run_id in runs] == [1] * len(runs)


async def test_nats_away_while_the_server_answers_loses_no_answer(post):
    await post.open()
    post.server.gate = asyncio.Event()
    async with post.mailer(smtp_data_timeout_seconds=120) as mailer:
        await queue(post, mailer.bus)
        await until(lambda: post.server.got, 60)
        await post.broker.stop()
        post.server.gate.set()
        await post.broker.start_process()
        (told,) = await post.notified(1, seconds=60)
    assert told.detail == "250 2.0.0 taken as number 1"
    assert len(post.server.got) == 1
