"""The product with a mail server: who reported an issue gets the branch by mail, and answers a question by its link."""

import re

from libs.testkit.broker import until
from libs.testkit.product import FAST, product
from tests.faults.story import repository, request, script
from tests.integration.mailer.mail_server import mail_server


async def test_the_reporter_is_asked_and_told_by_mail(tmp_path):
    repo = repository(tmp_path / "repo")
    async with mail_server() as server:
        mail = {
            "AGENT_CODER_SMTP_HOST": "127.0.0.1",
            "AGENT_CODER_SMTP_PORT": str(server.port),
            "AGENT_CODER_SMTP_SECURITY": "none",
            "AGENT_CODER_MAIL_DOMAIN": "agents.example.org",
        }
        async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", environment={**FAST, **mail}) as running:
            run_id = await running.solve("7", {**request(repo, plan_approval=True), "reporter_email": "dev@example.org"})
            await until(lambda: server.got, 60)
            question = server.messages[0].get_body(("plain",)).get_content()
            link = re.search(r"Approve:\s+http://[^/]+(/mail/decisions/\w+)", question)[1]
            page = await running.client.get(link)
            assert page.status_code == 200, page.text
            acted = await running.client.post(link)
            assert acted.status_code == 200, acted.text
            await running.wait(run_id)
            await until(lambda: len(server.got) == 2, 60)
    done = server.messages[1]
    assert done["Subject"].startswith("[agent-coder] done: add subtracts")
    assert done["In-Reply-To"] == server.messages[0]["Message-ID"]
    assert f"agent-coder fetch {run_id}" in done.get_body(("plain",)).get_content()
