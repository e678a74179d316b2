"""The npm clients against the started product: `ai` over HTTP, `agents` over WebSocket. Started by `make test-clients`."""

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio

from libs.testkit.product import product
from tests.e2e.chat_client import calls, script

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
TIME = ("current_time", {"zone": "Asia/Shanghai"})
OPEN_RUN = ("solve_issue", {"title": "add subtracts", "repo": "team/none"})
SCENES = {
    "#long": [{"content": "Roses are red, violets are blue. " * 10, "stream_delay_seconds": 0.05}],
    "#slow": [{"content": "Once upon a time there was a very small model. " * 5, "stream_delay_seconds": 0.05}],
    "#tool": [
        {**calls(TIME, content="Let me see. "), "reasoning": "They want the time."},
        {"content": "It is late."},
        {"content": "Later."},
    ],
    "#approve": [calls(OPEN_RUN, content="May I? "), {"content": "Very well."}],
    "#client": [calls(("read_clock", {})), {"content": "Noon."}],
    "#wall": [calls(("read_clock", {})), {"content": "It is noon, says the wall. " * 5, "stream_delay_seconds": 0.05}],
    "#branch": [{"content": "One."}],
    "#broken": [{"error": {"status": 400, "message": "this model is broken"}}],
    "#well": [{"content": "All is well."}],
    "#half": [{"content": "The half of ", "dropped": True}],
}
QUICK = {"MODEL_BACKOFF_SECONDS": "0.05", "AGENT_CODER_BACKOFF_BASE_SECONDS": "0.1", "AGENT_CODER_BACKOFF_CAP_SECONDS": "0.3"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory):
    place = tmp_path_factory.mktemp("clients")
    async with product(place / "home", script(place, SCENES, chunk_characters=6), environment=QUICK) as running:
        yield running


@pytest.mark.parametrize("suite", ["ai_sdk.test.mjs", "agents.test.mjs"])
async def test_an_npm_client_works_unmodified(running, suite):
    place = Path(os.environ["CHAT_CLIENTS"])
    token = (running.home / "token").read_text().strip()
    environment = {**os.environ, "CHAT_URL": str(running.client.base_url).rstrip("/"), "CHAT_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        *("node", "--experimental-websocket", "--no-warnings", "--test-reporter=spec", "--test-timeout=45000", "--test", suite),
        cwd=place,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    print(said.decode())
    assert process.returncode == 0, f"{said.decode()}\n{running.log()}"
    assert "?token=" not in (running.home / "up.log").read_text()
    assert "&token=" not in (running.home / "up.log").read_text()
