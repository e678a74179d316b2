"""The team's day by mail alone: a mail opens an issue, a pull request is told of by mail, the reply stands under it, a command goes on.

Real SMTP both ways, a name server, and GitHub's REST and git over HTTP, all on loopback; senders are proven (policy `strict`).
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import aiosmtplib
import pytest

from libs.bus import Kv
from libs.bus.connection import Connection
from libs.settings import BusSettings
from libs.testkit.broker import free_port
from libs.testkit.product import FAST, Product, product
from services.mailer.reply_address import ReplyAddresses
from tests.faults.story import PLAN, repository
from tests.integration.forge.github_out import GitHubOut, Repo, serving
from tests.integration.forge.out_world import FULL, key_pair
from tests.integration.mailer.mail_server import MailServer, mail_server
from tests.integration.mailer.mailbox import mail
from tests.integration.mailer.name_server import NameServer, name_server

DOMAIN, INTAKE, DEV, HINT = "agents.example.org", "solve@agents.example.org", "dev@example.org", "请再加上 mul。"
READY, UPDATED = "A pull request is ready", "The pull request was updated"
KILLS = ("before_fact:mail", "after_fact:mail", "after_record:reply", "before_append:run.opened", "after_append:run.opened")
KILLS += ("before_append:run.reply_received",)
KILLS += (
    "before_append:run.reply_received",
    "after_append:run.reply_received",
    "before_append:run.follow_up",
    "after_append:run.follow_up",
)


def model(place: Path) -> Path:
    """A scripted model that fixes `add`, and adds `mul` when somebody asks for it."""

    def edit(old: str, new: str) -> list[dict[str, Any]]:
        calls = [[("edit", {"path": "adder.py", "old": old, "new": new})], [("done", {"summary": "Done."})]]
        return [{"tool_calls": [{"name": name, "arguments": given} for name, given in turn]} for turn in calls]

    more = edit("return a + b\n", "return a + b\n\n\ndef mul(a, b):\n    return a * b\n")
    rules = [
        {"when": {"purpose": "edit", "contains": HINT}, "replies": more},
        {"when": {"purpose": "edit"}, "replies": edit("a - b", "a + b")},
        {"when": {"purpose": "plan"}, "replies": [{"content": json.dumps(PLAN)}]},
    ]
    path = place / "model.json"
    path.write_text(json.dumps({"name": "adder", "rules": rules}))
    return path


@dataclass
class Team:
    """What people see: the product, GitHub, their mailbox; and the door for their mails."""

    running: Product
    github: GitHubOut
    repo: Repo
    box: MailServer
    dns: NameServer
    port: int

    async def send(self, message: EmailMessage, to: str, sender: str = DEV) -> str:
        """Hand a mail over until it is taken or refused: a server that is away, or says 4xx, is asked again."""
        async with asyncio.timeout(120):
            while True:
                try:
                    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=self.port, start_tls=False, timeout=30) as client:
                        _, said = await client.send_message(message, sender=sender, recipients=[to])
                        return f"250 {said}"
                except aiosmtplib.SMTPRecipientsRefused as error:
                    code, said = error.recipients[0].code, error.recipients[0].message
                except aiosmtplib.SMTPResponseException as error:
                    code, said = error.code, error.message
                except (aiosmtplib.SMTPException, OSError):
                    code, said = 421, ""
                if code >= 500:
                    return f"{code} {said}"
                await asyncio.sleep(0.2)

    async def until(self, what: str, look: Any, seconds: float = 120) -> Any:
        """What `look` gives once it gives something."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := look()):
                    await asyncio.sleep(0.1)
                return found
        except TimeoutError:
            runs = (await self.running.client.get("/api/runs")).text
            seen = f"{[m['Subject'] for m in self.box.messages]} {self.repo.pulls} {dict(self.github.calls)}"
            raise AssertionError(f"never: {what}\n{seen}\n{runs[:4000]}\n{self.running.log()}") from None

    def letters(self, words: str) -> list[EmailMessage]:
        """The mails whose text holds these words."""
        return [m for m in self.box.messages if words in m.get_body(("plain",)).get_content()]

    async def letter(self, words: str) -> EmailMessage:
        """The mail whose text holds these words, once it is there."""
        return (await self.until(f"a mail: {words}", lambda: self.letters(words)))[0]

    def comments(self) -> list[str]:
        """What stands under the pull request, less the run's status."""
        number = next(iter(self.repo.pulls))
        return [c["body"] for c in self.repo.comments.get(number, []) if "wrote by mail" in c["body"]]


@asynccontextmanager
async def team(place: Path, *options: str, **environment: str) -> AsyncIterator[Team]:
    """Everything, running."""
    home, port = place / "home", free_port()
    home.mkdir()
    public = key_pair(home)
    async with serving(lambda: GitHubOut(place, public)) as github, mail_server() as box, name_server() as dns:
        repo = github.create(FULL, repository(place / "source"))
        (home / "mail.toml").write_text(
            f'[[intake]]\naddress = "{INTAKE}"\nrepo = "{github.url}/{FULL}.git"\nallow = ["*@example.org"]\n', "utf-8"
        )
        dns.txt("example.org", "v=spf1 ip4:127.0.0.1 -all")
        dns.txt("evil.test", "v=spf1 +all")
        settings = {
            "GITHUB_BASE_URL": github.url,
            "GITHUB_APP_ID": "77",
            "MAIL_DOMAIN": DOMAIN,
            "MAIL_LISTEN": f"127.0.0.1:{port}",
            "MAIL_DNS": f"127.0.0.1:{dns.port}",
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(box.port),
            "SMTP_SECURITY": "none",
        }
        variables = {**FAST, **{f"AGENT_CODER_{name}": value for name, value in settings.items()}, **environment}
        async with product(home, f"scripted:{model(place)}", *options, environment=variables) as running:
            yield Team(running, github, repo, box, dns, port)


def issue() -> EmailMessage:
    return mail("add(1, 2) is -1.", Subject="加法错了", Message_ID="<issue@example.org>")


def reply_to(letter: EmailMessage) -> str:
    return parseaddr(letter["Reply-To"])[1]


def answer(text: str, number: int, **headers: str) -> EmailMessage:
    """A reply as a Chinese mail program writes it."""
    quoted = f"{text}\n\n发自我的 iPhone\n\n> 在 2026年11月29日，21:05，agent-coder <agent@{DOMAIN}> 写道：\n> \n> done\n"
    return mail(quoted, **{"Message_ID": f"<{number}@example.org>", **headers})


async def to_pull_request(here: Team) -> EmailMessage:
    """An issue by mail, up to the mail that tells of its pull request."""
    assert (await here.send(issue(), INTAKE)).startswith("250")
    assert (await here.send(issue(), INTAKE)).startswith("250")  # its server had not heard the first 250
    letter = await here.letter(READY)
    assert len(here.repo.pulls) == 1
    return letter


async def further(here: Team, letter: EmailMessage) -> None:
    """A comment, and a command that makes a follow-up on the same branch."""
    assert (await here.send(answer("看起来不错。", 1), reply_to(letter))).startswith("250")
    (comment,) = await here.until("a comment", here.comments)
    assert comment.startswith(f"`{DEV}` wrote by mail:\n\n> 看起来不错。")
    assert (await here.send(answer(f"/retry {HINT}", 2), reply_to(letter))).startswith("250")
    await here.letter(UPDATED)


def check(here: Team) -> None:
    """One of each, whatever was sent twice or killed on the way."""
    assert len(here.repo.pulls) == 1
    assert len(here.comments()) == 1
    branch = next(iter(here.repo.pulls.values()))["head"]["ref"]
    code = here.github.git.git(FULL, "show", f"{branch}:adder.py")
    assert "def mul" in code
    assert "a + b" in code
    assert (len(here.letters(READY)), len(here.letters(UPDATED))) == (1, 1)


@pytest.mark.timeout(400)
async def test_an_issue_by_mail_its_pull_request_a_reply_and_a_follow_up(tmp_path):
    async with team(tmp_path) as here:
        letter = await to_pull_request(here)
        assert (letter["In-Reply-To"], letter["Auto-Submitted"], letter["Subject"]) == (
            "<issue@example.org>",
            "auto-generated",
            "Re: 加法错了",
        )
        assert next(iter(here.repo.pulls.values()))["html_url"] in letter.get_body(("plain",)).get_content()
        await further(here, letter)
        check(here)
        (run,) = (await here.running.client.get("/api/runs")).json()["runs"]
        types = [event["type"] for event in await here.running.events(run["run_id"])]
        assert [t for t in types if t in ("run.reply_received", "run.follow_up")] == [
            "run.reply_received",
            "run.reply_received",
            "run.follow_up",
        ]


@pytest.mark.timeout(400)
async def test_what_is_forged_expired_replayed_or_from_another_is_refused_with_its_reason_and_robots_are_not_heard(tmp_path):
    async with team(tmp_path) as here:
        to = reply_to(await to_pull_request(here))
        sent = len(here.box.got)
        token = to.partition("@")[0].partition("+")[2]
        other = token[:-1] + ("a" if token[-1] != "a" else "b")
        refused = {
            "invalid": await here.send(answer("x", 1), f"agent+{other}@{DOMAIN}"),
            "missing": await here.send(answer("x", 1), f"agent@{DOMAIN}"),
            "expired": await here.send(answer("x", 1), await expired(here)),
            "wrong_sender": await here.send(answer("x", 1, From="colleague@example.org"), to),
            "unproven": await here.send(answer("x", 1), to, sender="dev@evil.test"),
            "not_allowed": await here.send(answer("x", 1, From="dev@evil.test"), INTAKE, sender="dev@evil.test"),
        }
        assert {why: said[:3] for why, said in refused.items()} == dict.fromkeys(refused, "550"), refused
        assert all(f" {why}: " in said for why, said in refused.items()), refused
        assert (await here.send(answer("the one that counts", 1), to)).startswith("250")
        assert " replayed: " in await here.send(answer("other words", 1), to)
        assert (await here.send(answer("我在休假", 2, Auto_Submitted="auto-replied"), to)).startswith("250")
        assert (await here.send(answer("Out of office", 3, Subject="Automatic reply: away"), to)).startswith("250")
        assert (await here.send(mail("no such user", From=f"MAILER-DAEMON@{DOMAIN}", Message_ID="<4@x>"), to, sender="")).startswith("250")
        assert (await here.send(answer("the last", 5), to)).startswith("250")
        await here.until("two comments", lambda: len(here.comments()) == 2)
        assert [re.search(r"> (.*)", c)[1] for c in here.comments()] == ["the one that counts", "the last"]
        assert len(here.box.got) == sent  # nobody was answered by a mail


async def expired(here: Team) -> str:
    """An address that was given out long ago, by whoever knows the installation's key."""
    runtime = json.loads((here.running.home / "runtime.json").read_text())
    connection = await Connection.open(BusSettings(home=here.running.home, nats_url=runtime["nats_url"]), "mailer")
    secret = (here.running.home / "mailer" / "reply-secret").read_text().strip().encode()
    try:
        return await ReplyAddresses(Kv(connection, "MAIL"), secret, DOMAIN, 30).give(
            "R1", "reply", 1, DEV, datetime(2020, 1, 1, tzinfo=UTC)
        )
    finally:
        await connection.close()


@pytest.mark.timeout(600)
async def test_the_mailer_killed_at_each_point_of_mail_in(tmp_path):
    crash = tmp_path / "crashes"
    crash.mkdir()
    kills = ",".join(f"mailer:{point}" for point in KILLS)
    async with team(tmp_path, "--apart", "mailer", AGENT_CODER_CRASH_AT=kills, AGENT_CODER_CRASH_DIR=str(crash)) as here:
        await further(here, await to_pull_request(here))
        check(here)
    assert {path.name.replace("-", "/") for path in crash.iterdir()} == {f"mailer:{point}".replace("-", "/") for point in KILLS}
