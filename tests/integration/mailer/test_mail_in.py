"""Mail that comes in over SMTP: who is refused and why, and what becomes of what is taken."""

import asyncio
from datetime import UTC, datetime

import pytest

from libs.contracts import run as events
from libs.contracts.team import RunCommented, RunFollowedUp, RunNotified
from tests.integration.mailer.mailbox import door, mail
from tests.integration.mailer.post_office import SHA


async def until(post, check, run_id="R1"):
    async with asyncio.timeout(60):
        while not check(state := await post.state(run_id)):
            await asyncio.sleep(0.02)
        return state


async def commits(post, run_id="R1"):
    await post.append(events.RunCommitted(run_id=run_id, attempt=1, repository="demo", branch="fix/issue-7", sha=SHA, message="m"))


async def finishes(post, run_id="R1"):
    await commits(post, run_id)
    await post.append(events.RunFinished(run_id=run_id, attempts=1, branch="fix/issue-7", sha=SHA))


async def test_a_reply_to_a_pull_request_is_recorded_for_the_forge_once(post):
    await post.open()
    await post.publishes()
    async with door(post) as box:
        to = await box.address()
        quoted = "请加一个测试。\n\nOn Sun, Nov 29, 2026 agent-coder <agent@example.org> wrote:\n> done\n"
        assert (await box.send(mail(quoted), to.upper())).startswith("250")
        assert (await box.send(mail(quoted), to)).startswith("250")  # the 250 may have been lost
        state = await until(post, lambda s: s.replies)
        await box.send(mail("And docs.", Message_ID="<2@example.org>"), to)
        state = await until(post, lambda s: len(s.replies) == 2)
    assert [(r.action, r.text, r.sender) for r in state.replies] == [
        ("comment", "请加一个测试。", "dev@example.org"),
        ("comment", "And docs.", "dev@example.org"),
    ]
    assert not state.comments


async def test_without_a_pull_request_words_go_to_the_run_and_start_another_round_when_it_is_over(post):
    await post.open()
    async with door(post) as box:
        to = await box.address()
        await box.send(mail("Mind the tests."), to)
        state = await until(post, lambda s: s.comments)
        assert isinstance(state.comments[0].event, RunCommented)
        assert state.replies[0].action == "message"
        await finishes(post)
        await box.send(mail("Now the docs.", Message_ID="<2@example.org>"), to)
        state = await until(post, lambda s: s.follow_ups)
    assert state.follow_ups == (
        RunFollowedUp(run_id="R1", by="mail:dev@example.org", source="mail", feedback="Now the docs.", key="<2@example.org>"),
    )


@pytest.mark.parametrize(("word", "status"), [("/approve", "verifying"), ("/deny too risky", "denied"), ("/cancel", "cancelled")])
async def test_commands_answer_the_open_question(post, word, status):
    await post.open()
    asked = await post.asks()
    async with door(post) as box:
        await box.send(mail(f"{word}\n\nOn Sun agent <agent@example.org> wrote:\n> ?"), await box.address(purpose="decision", of=asked))
        state = await until(post, lambda s: s.status == status)
    assert state.replies[0].action == word.split()[0][1:]
    assert state.replies[0].text == word.partition(" ")[2]


async def test_an_approval_answers_the_question_of_its_mail_and_no_later_one(post):
    await post.open()
    first = await post.asks()
    await post.append(events.RunApproved(run_id="R1", step="verify", of=1, by="local"))
    await post.asks("Another?")
    async with door(post) as box:
        await box.send(mail("/approve"), await box.address(purpose="decision", of=first))
        await box.send(mail("words", Message_ID="<2@example.org>"), await box.address())
        state = await until(post, lambda s: len(s.replies) == 2)
        state = await until(post, lambda s: s.comments)
    assert state.status == "waiting"


async def test_retry_tells_a_failed_run_the_words_before_it_tries_again(post):
    await post.open()
    await post.fails()
    async with door(post) as box:
        await box.send(mail("/retry use the other parser"), await box.address())
        state = await until(post, lambda s: s.status == "planning")
    assert state.comments[0].event.text == "use the other parser"
    history = [type(r.event).__name__ for r in await post.journal.read("R1") if not isinstance(r.event, RunNotified)]
    assert history[-3:] == ["ReplyReceived", "RunCommented", "RunRetried"]


async def test_retry_of_a_run_that_is_out_makes_another_round(post):
    await post.open()
    await finishes(post)
    async with door(post) as box:
        await box.send(mail("/retry"), await box.address())
        state = await until(post, lambda s: s.follow_ups)
    assert state.follow_ups[0].feedback == "Asked for another attempt by mail."


async def test_each_refusal_says_its_reason_before_the_mail_is_taken_and_nothing_is_sent(post):
    await post.open()
    async with door(post) as box:
        good = await box.address()
        local, _, domain = good.partition("@")
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        said = {
            "missing": await box.send(mail(), f"agent@{domain}"),
            "missing: ": await box.send(mail(), "somebody@elsewhere.test"),
            "invalid": await box.send(mail(), f"{local[:-2]}{'aa' if local[-2:] != 'aa' else 'bb'}@{domain}"),
            "invalid: ": await box.send(mail(), await box.address(secret=b"another")),
            "expired": await box.send(mail(), await box.address(now=long_ago)),
            "wrong_sender": await box.send(mail(From="boss@example.org"), good),
            "wrong_sender: ": await box.send(mail(From="dev@example.org.evil.test"), good),
            "no_sender": await box.send(
                mail().as_bytes().replace(b"From: Dev <dev@example.org>", b"From: dev@example.org, x@y.test"), good
            ),
        }
        assert {why: (text[:3], f" {why.strip(': ')}: " in text) for why, text in said.items()} == dict.fromkeys(said, ("550", True)), said
        assert (await box.send(mail("first"), good)).startswith("250")
        assert " replayed: " in await box.send(mail("other words under the same id"), good)
        await until(post, lambda s: s.replies)
    assert [r.text for r in (await post.state()).replies] == ["first"]
    assert post.server.got == []


async def test_automatic_mail_is_recorded_and_is_nobodys_word(post):
    await post.open()
    await post.append(
        RunNotified(run_id="R1", kind="failed", of=1, recipient="dev@example.org", message_id="<out@agents.example.org>", outcome="sent")
    )
    report = (
        b"From: MAILER-DAEMON@mx.test\r\nMessage-ID: <b@mx.test>\r\n"
        b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n"
        b"--b\r\n\r\nSorry.\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.test\r\n\r\nAction: failed\r\n"
        b"Status: 5.1.1\r\nDiagnostic-Code: smtp; 550 no such user\r\n--b\r\nContent-Type: text/rfc822-headers\r\n\r\n"
        b"Message-ID: <out@agents.example.org>\r\n--b--\r\n"
    )
    async with door(post) as box:
        to = await box.address()
        assert (await box.send(mail("I am away", Auto_Submitted="auto-replied", Message_ID="<v@example.org>"), to)).startswith("250")
        assert (await box.send(mail("自动回复", Subject="自动回复：不在", Message_ID="<w@example.org>"), to)).startswith("250")
        assert (await box.send(report, to, sender="")).startswith("250")
        state = await until(post, lambda s: len(s.notifications) == 2)
        await box.send(mail("a person"), to)
        state = await until(post, lambda s: s.replies)
    assert [r.text for r in state.replies] == ["a person"]
    assert (state.notifications[1].outcome, state.notifications[1].detail) == ("refused", "came back: 5.1.1 550 no such user")
    assert post.server.got == []


async def test_a_bus_that_is_away_means_later_and_the_mail_is_taken_once_it_is_back(post):
    await post.open()
    async with door(post) as box:
        to = await box.address()
        await post.broker.stop()
        assert (await box.send(mail(), to)).startswith("451")
        await post.broker.start_process()
        async with asyncio.timeout(60):
            while not (await box.send(mail(), to)).startswith("250"):
                await asyncio.sleep(0.1)
        state = await until(post, lambda s: s.replies or s.comments)
    assert len(state.replies) == 1


async def test_two_mailers_and_every_fact_handled_twice_act_once(post, monkeypatch):
    monkeypatch.setattr("libs.bus.delivery.DUPLICATE", True)
    await post.open()
    await post.fails()
    async with door(post) as box, door(post) as other:
        to = await box.address()
        await asyncio.gather(*(b.send(mail("/retry now"), to) for b in (box, other, box, other)))
        await until(post, lambda s: s.status == "planning")
        await box.send(mail("more", Message_ID="<2@example.org>"), to)
        state = await until(post, lambda s: len(s.comments) == 2)
    names = [type(r.event).__name__ for r in await post.journal.read("R1")]
    assert names.count("RunRetried") == 1
    assert (len(state.replies), len(state.comments)) == (2, 2)
