"""Real bugs of npm packages, solved through HTTP: set-up reaches the registry through the sandbox's proxy, the tests run without network.

Started by `make test-clients`, which puts Node on PATH; the name keeps it out of `make test`.
"""

import shutil

import pytest

from libs.testkit.cases import assert_solved, prepare
from libs.testkit.openai_server import OpenAiServer
from libs.testkit.product import product
from tests.e2e.perfect_model import PerfectModel


@pytest.mark.parametrize(("name", "form"), [("minimist-prototype-pollution", "unified_diff"), ("shell-quote-drive-letter", "tool_calls")])
async def test_a_real_bug_of_an_npm_package_is_solved(name, form, tmp_path):
    case = await prepare(name, tmp_path / "case")
    async with product(tmp_path / "home", f"scripted:{case.script(form)}") as running:
        body = case.request(test_commands=[case.row["run"], f"test $(command -v node) = {shutil.which('node')}"])
        run_id = await running.solve(case.row["issue"]["id"], body)
        shown = await running.wait(run_id)
        assert [run["exit_code"] for run in shown["commands"] if run["phase"] == "test"] == [0, 0]
        setup = [(run["command"], run["exit_code"]) for run in shown["commands"] if run["phase"] == "setup"]
        assert setup == [(case.row["setup"], 0)]
        await assert_solved(running, case, run_id, tmp_path / "clone")


async def test_a_real_bug_of_an_npm_package_is_solved_through_an_openai_compatible_server(tmp_path):
    case = await prepare("minimist-prototype-pollution", tmp_path / "case")
    server = OpenAiServer(PerfectModel(case))
    async with server.running():
        environment = {"MODEL_BASE_URL": server.base_url}
        async with product(tmp_path / "home", "openai/fake", environment=environment) as running:
            run_id = await running.solve(case.row["issue"]["id"], case.request())
            shown = await running.wait(run_id)
            await assert_solved(running, case, run_id, tmp_path / "clone")
    assert server.calls == shown["usage"]["calls"]
