"""Mail out, from an event on the journal to a real SMTP server: what is said, to whom, in which thread, once."""

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

from libs.bus import Refusal
from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.mail import DecideByLink
from libs.telemetry import Telemetry, trace_id
from tests.integration.mailer.post_office import SHA


def parts(message) -> tuple[str, str]:
    return message.get_body(("plain",)).get_content(), message.get_body(("html",)).get_content()


async def test_a_pull_request_is_told_once_with_a_way_to_answer(post):
    await post.open()
    of = await post.publishes()
    async with post.mailer():
        (told,) = await post.notified(1)
        await post.append(events.RunFinished(run_id="R1", attempts=1, branch="fix/issue-7", sha=SHA))
        await post.append(team.RunMerged(run_id="R1", sha=SHA, by=("reviewer",)))
        _, merged = await post.notified(2)
    assert (told.kind, told.of, told.recipient, told.outcome) == ("pr_ready", of, "dev@example.org", "sent")
    assert told.detail.startswith("250 2.0.0 taken")
    first, second = post.server.messages
    assert first["Subject"] == "[agent-coder] PR ready: add 做减法"
    assert first["From"] == "agent-coder <agent@agents.example.org>"
    assert first["Message-ID"] == told.message_id
    assert re.fullmatch(rf"<R1\.{of}\.[a-z2-7]{{8}}@agents\.example\.org>", told.message_id)
    assert re.fullmatch(r"agent\+[a-z2-7]{48}@agents\.example\.org", first["Reply-To"])
    assert post.server.got[0].mail_from == first["Reply-To"]
    assert (first["Auto-Submitted"], first["List-Unsubscribe-Post"]) == ("auto-generated", "List-Unsubscribe=One-Click")
    assert first["In-Reply-To"] is None
    text, html = parts(first)
    assert "https://github.test/acme/app/pull/9" in text
    assert '<a href="https://github.test/acme/app/pull/9">' in html
    assert second["Subject"] == "[agent-coder] merged: add 做减法"
    assert second["In-Reply-To"] == second["References"] == told.message_id
    assert merged.kind == "merged"


async def test_without_a_pull_request_the_branch_and_how_to_fetch_it_are_told(post):
    await post.open()
    await post.append(events.RunCommitted(run_id="R1", attempt=1, repository="demo", branch="fix/issue-7", sha=SHA, message="fix"))
    await post.append(events.RunFinished(run_id="R1", attempts=1, branch="fix/issue-7", sha=SHA))
    async with post.mailer():
        (told,) = await post.notified(1)
    text, _ = parts(post.server.messages[0])
    assert told.kind == "finished"
    assert "agent-coder fetch R1" in text
    assert "git clone --branch fix/issue-7 https://coder.example.org/git/demo.git" in text


async def test_a_mail_that_started_a_run_is_answered_in_its_thread(post):
    thread = events.MailThread(message_id="<first@example.org>", references=("<zero@example.org>", "bad id"), subject="AW: Re: 登录坏了")
    await post.open(mail=thread, origin="mail", requested_by="mail:dev@example.org", reporter_email="boss@example.org")
    await post.fails(reason="<script>alert(1)</script> 没有模型")
    async with post.mailer():
        await post.notified(2)
    assert sorted(e.rcpt_tos[0] for e in post.server.got) == ["boss@example.org", "dev@example.org"]
    for message in post.server.messages:
        assert message["Subject"] == "Re: 登录坏了"
        assert message["In-Reply-To"] == "<first@example.org>"
        assert message["References"] == "<zero@example.org> <first@example.org>"
        text, html = parts(message)
        assert "<script>alert(1)</script> 没有模型" in text
        assert "<script" not in html
        assert "&lt;script&gt;" in html
    assert len({m["Reply-To"] for m in post.server.messages}) == 2


async def test_each_round_and_each_failure_is_news_and_the_same_news_is_not(post):
    await post.open()
    await post.publishes()
    await post.publishes()
    async with post.mailer():
        await post.notified(1)
        await post.append(team.RunFollowedUp(run_id="R1", by="reviewer", source="review", feedback="more"))
        await post.publishes()
        await post.notified(2)
        await post.fails()
        await post.fails()
        await post.notified(4)
    subjects = sorted(m["Subject"].split(":")[0] for m in post.server.messages)
    assert subjects == ["[agent-coder] PR ready", "[agent-coder] PR updated", "[agent-coder] failed", "[agent-coder] failed"]


async def test_a_run_without_an_address_is_told_to_nobody(post):
    await post.open("R0", reporter_email=None)
    await post.fails("R0")
    await post.open("R1")
    await post.fails("R1")
    async with post.mailer():
        await post.notified(1)
    assert len(post.server.got) == 1
    assert (await post.state("R0")).notifications == ()


@pytest.mark.parametrize("action", ["approve", "deny"])
async def test_a_question_is_decided_by_a_link_that_asks_once_more(post, action):
    await post.open()
    asked = await post.asks("Merge without tests? 要不要？")
    async with post.mailer():
        await post.notified(1)
        text, html = parts(post.server.messages[0])
        assert "| Merge without tests? 要不要？" in text
        links = dict(zip(("approve", "deny"), re.findall(r"  https://coder\.example\.org/mail/decisions/(\w+)\s", text), strict=True))
        assert all(f"/mail/decisions/{token}" in html for token in links.values())
        shown = await post.ask(DecideByLink(token=links[action]))
        assert (shown.action, shown.question, shown.done) == (action, "Merge without tests? 要不要？", None)
        assert (await post.state()).pending is not None
        acted = await post.ask(DecideByLink(token=links[action].upper(), confirmed=True))
        again = await post.ask(DecideByLink(token=links[action], confirmed=True))
        other = await post.ask(DecideByLink(token=links["deny" if action == "approve" else "approve"], confirmed=True))
    past = {"approve": "approved", "deny": "denied"}[action]
    assert acted.done.startswith(f"{past} by you on ")
    assert again.done == other.done == acted.done
    decided = [r for r in await post.journal.read("R1") if isinstance(r.event, events.RunApproved | events.RunDenied)]
    assert [(r.event.step, r.event.by) for r in decided] == [("verify", "mail:dev@example.org")]
    assert decided[0].sequence > asked


async def test_a_question_that_was_answered_before_the_mailer_came_is_not_mailed(post):
    await post.open()
    await post.asks()
    await post.append(events.RunApproved(run_id="R1", step="verify", of=1, by="operator"))
    await post.fails()
    async with post.mailer():
        (told,) = await post.notified(1)
    assert told.kind == "failed"


async def test_who_unsubscribes_gets_no_more_until_a_mail_of_theirs_starts_a_run(post):
    await post.open()
    await post.fails()
    async with post.mailer():
        await post.notified(1)
        token = re.search(r"/decisions/(\w+)>", post.server.messages[0]["List-Unsubscribe"])[1]
        assert (await post.ask(DecideByLink(token=token))).done is None
        assert "no more mail goes to dev@example.org" in (await post.ask(DecideByLink(token=token, confirmed=True))).done
        await post.fails()
        _, left_out = await post.notified(2)
        assert (left_out.outcome, left_out.detail) == ("suppressed", "the recipient asked for no more mail")
        await post.open("R2", origin="mail", requested_by="mail:dev@example.org", opened_at=datetime.now(UTC))
        await post.fails("R2")
        (told,) = await post.notified(1, "R2")
    assert told.outcome == "sent"
    assert len(post.server.got) == 2


async def test_a_run_has_its_share_of_mails_and_a_recipient_waits_for_room(post):
    await post.open()
    for _ in range(3):
        await post.fails()
    async with post.mailer(mail_per_run=2):
        told = await post.notified(3)
    assert sorted(n.outcome for n in told) == ["sent", "sent", "suppressed"]
    assert [n.detail for n in told if n.outcome == "suppressed"] == ["the run has had its 2 mails"]


async def test_words_that_look_like_a_secret_stay_here(post):
    secret = f"ghp_{'Ab1' * 12}"
    await post.open(issue=events.Issue(id="7", title=f"leak {secret}"))
    await post.asks(f"The log says {secret}: go on?")
    async with post.mailer():
        await post.notified(1)
    (message,) = post.server.messages
    assert secret not in post.server.got[0].original_content.decode()
    text, html = parts(message)
    assert secret not in text + html + message["Subject"]
    assert "look like they hold a secret" in text
    assert "/mail/decisions/" in text


@pytest.mark.parametrize("address", ["dev@example.org\r\nBcc: all@example.org", "no address", "agent+x@agents.example.org"])
async def test_an_address_that_is_none_or_our_own_gets_nothing(post, address):
    await post.open(reporter_email=address)
    await post.fails()
    async with post.mailer():
        (told,) = await post.notified(1)
    assert told.outcome in ("refused", "suppressed")
    assert post.server.got == []


async def test_a_title_of_several_lines_injects_no_header(post):
    await post.open(issue=events.Issue(id="7", title="broken\r\nBcc: all@example.org\r\n\r\nhello"))
    await post.fails()
    async with post.mailer():
        await post.notified(1)
    (message,) = post.server.messages
    assert message["Bcc"] is None
    assert message["Subject"] == "[agent-coder] failed: broken Bcc: all@example.org hello"


async def test_without_a_mail_server_news_is_left_and_not_sent_later(post):
    await post.open()
    await post.fails()
    async with post.mailer(smtp_host=None), asyncio.timeout(60):
        while (info := await post.people.api("CONSUMER.INFO.RUN.mailer-notify", {}))["num_pending"] or info["num_ack_pending"]:
            await asyncio.sleep(0.05)
    await post.open("R2")
    await post.fails("R2")
    async with post.mailer():
        await post.notified(1, "R2")
    assert len(post.server.got) == 1
    assert (await post.state()).notifications == ()


async def test_a_link_answers_its_own_question_only(post):
    await post.open()
    await post.asks("first?")
    async with post.mailer():
        await post.notified(1)
        await post.append(events.RunApproved(run_id="R1", step="verify", of=1, by="operator"))
        await post.asks("second?")
        await post.notified(2)
        texts = [parts(m)[0] for m in post.server.messages]
        first, second = (re.findall(r"/mail/decisions/(\w+)", t)[0] for t in texts)
        shown = await post.ask(DecideByLink(token=first, confirmed=True))
        assert (shown.question, shown.done.partition(" on ")[0]) == ("first?", "approved by operator")
        assert (await post.state()).pending.question == "second?"
        assert (await post.ask(DecideByLink(token=second))).done is None
        for forged in (first[:-1] + ("a" if first[-1] != "a" else "b"), "x", first + "a", "☃" * 48):
            with pytest.raises(Refusal) as refused:
                await post.ask(DecideByLink(token=forged, confirmed=True))
            assert refused.value.code == "not_found"


async def test_a_cancelled_run_is_not_approved_by_its_link(post):
    await post.open()
    await post.asks()
    async with post.mailer():
        await post.notified(1)
        token = re.search(r"/mail/decisions/(\w+)", parts(post.server.messages[0])[0])[1]
        await post.append(events.RunCancelled(run_id="R1", by="operator"))
        shown = await post.ask(DecideByLink(token=token, confirmed=True))
    assert shown.done.startswith("the run was cancelled by operator")
    assert (await post.state()).status == "cancelled"


async def test_the_mail_and_its_outcome_belong_to_the_trace_of_the_run(post):
    telemetry = Telemetry("test")
    with telemetry.span("somebody asks") as span:
        await post.open()
        await post.fails()
    trace = f"{span.get_span_context().trace_id:032x}"
    async with post.mailer():
        (told,) = await post.notified(1)
    for stream, subject in (("MAIL", "mail.out.*"), ("RUN", "run.R1.notified")):
        request = json.dumps({"last_by_subj": subject} if "*" not in subject else {"seq": 1, "next_by_subj": subject}).encode()
        stored = await post.people.call(f"$JS.API.DIRECT.GET.{stream}", request)
        assert trace_id(stored.headers) == trace, stream
    assert told.outcome == "sent"
