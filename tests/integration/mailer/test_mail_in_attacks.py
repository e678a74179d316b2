"""What strangers do to an SMTP server: two mails in one, endless ones, nested ones, slow ones. Each is refused or bounded."""

import asyncio
import base64
import contextlib

import psutil
import pytest

from tests.integration.mailer.mailbox import door, mail

HELLO = b"EHLO client.test\r\nMAIL FROM:<dev@example.org>\r\n"


async def dialogue(box, *lines: bytes) -> bytes:
    return await box.talk(b"".join(lines))


def head(to: str) -> bytes:
    return HELLO + b"RCPT TO:<" + to.encode() + b">\r\nDATA\r\n"


MAIL = b"From: dev@example.org\r\nMessage-ID: <1@example.org>\r\nSubject: x\r\n\r\n"


@pytest.mark.parametrize("end", [b"\n.\n", b"\n.\r\n", b"\r.\r", b"\r\n.\r", b"\r\n.\n", b"\n\n.\r\n", b"\r.\r\n", b"\r\n\x00.\r\n"])
async def test_a_second_mail_cannot_be_smuggled_in(post, end):
    await post.open()
    async with door(post) as box:
        to = await box.address()
        second = b"MAIL FROM:<boss@example.org>\r\nRCPT TO:<" + to.encode() + b">\r\nDATA\r\n" + MAIL.replace(b"1@", b"2@") + b"/cancel"
        said = await dialogue(box, head(to), MAIL, b"harmless", end, second, b"\r\n.\r\nQUIT\r\n")
    answers = said.split(b"354", 1)[1].splitlines()[1:]
    assert answers[0].startswith((b"550", b"500")), said
    assert b"250 2.0.0" not in said
    assert (await post.state()).replies == ()


async def test_commands_in_one_piece_are_answered_in_order_and_injection_into_them_fails(post):
    async with door(post) as box:
        to = await box.address()
        said = await dialogue(box, head(to), MAIL, b"hello\r\n..dot\r\n.\r\n", b"NOOP\r\nQUIT\r\n")
        assert [line[:3] for line in said.splitlines() if line[3:4] != b"-"] == [
            b"220",
            b"250",
            b"250",
            b"250",
            b"354",
            b"250",
            b"250",
            b"221",
        ]
        own = to.encode()
        for hostile in (
            b"RCPT TO:<a@b>\x00<" + own + b">",
            b"RCPT TO:<x\ny@z>",
            b"RCPT TO:<" + b"a" * 600 + b"@x>",
            b"RCPT TO:<%s\xff>" % own,
        ):
            said = await dialogue(box, HELLO, hostile, b"\r\nQUIT\r\n")
            assert b"250 2.1.5" not in said


async def test_fifty_megabytes_are_refused_by_their_size_and_while_they_are_read(post):
    async with door(post) as box:
        to = await box.address()
        said = await dialogue(box, b"EHLO x\r\nMAIL FROM:<dev@example.org> SIZE=52428800\r\nQUIT\r\n")
        assert b"552" in said
        line = b"x" * 70 + b"\r\n"
        before = psutil.Process().memory_info().rss
        said = await dialogue(box, head(to), MAIL, line * (50 * 1024 * 1024 // len(line)), b".\r\nQUIT\r\n")
        assert b"\r\n552 " in said
        assert psutil.Process().memory_info().rss - before < 200 * 1024 * 1024
        assert b"\r\n500 " in await dialogue(box, head(to), MAIL, b"y" * 5000, b"\r\n.\r\nQUIT\r\n")


async def test_a_line_without_an_end_and_a_mail_without_one_end_the_connection(post):
    async with door(post, mail_max_bytes=200_000) as box:
        to = await box.address()
        for piece in (b"z" * 3_000_000, b"z\r\n" * 1_000_000, b"\r\n" * 1_500_000):
            with contextlib.suppress(ConnectionError):  # it hung up before it had heard all
                assert b"552" in await dialogue(box, head(to), MAIL, piece)


@pytest.mark.parametrize("kind", ["nested", "wide", "headers", "rfc822"])
async def test_a_bomb_is_refused_with_words(post, kind):
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(1000))
    body = {
        "nested": nested,
        "wide": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n" * 100_000,
        "headers": b"X-A: y\r\n" * 20_000 + b"\r\n",
        "rfc822": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\nContent-Type: message/rfc822\r\n\r\n" * 5_000,
    }[kind]
    async with door(post) as box:
        said = await box.send(MAIL.replace(b"\r\n\r\n", b"\r\n") + body, await box.address())
    assert said.startswith("554")
    assert "unreadable: " in said


async def test_more_connections_than_there_are_places_for_are_sent_away(post):
    async with door(post, mail_connections=3) as box:
        inside = []
        while len(inside) < 3:
            reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
            if (await reader.readline()).startswith(b"220"):  # the knock of the fixture may still hold a place
                inside.append(writer)
        assert await box.talk() == b"421 4.3.2 too many connections, try again later\r\n"
        inside.pop().close()
        async with asyncio.timeout(60):
            while b"221" not in await box.talk(b"QUIT\r\n"):
                await asyncio.sleep(0.02)
        for writer in inside:
            writer.close()


async def test_one_address_takes_no_more_than_half_of_the_places_unless_it_is_a_relay_of_ours(post):
    async with door(post, mail_connections=4, mail_relay_networks="192.0.2.0/24") as box:
        inside = []
        while len(inside) < 2:
            reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
            if (await reader.readline()).startswith(b"220"):  # the knock of the fixture may still hold a place
                inside.append(writer)
        assert await box.talk() == b"421 4.3.2 too many connections, try again later\r\n"
        for writer in inside:
            writer.close()


async def test_a_server_that_stops_takes_leave_of_who_is_there(post):
    async with door(post) as box:
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        writer.write(head(await box.address()) + MAIL)
        heard = await reader.readuntil(b"354")
    async with asyncio.timeout(60):
        heard = await reader.read()
    writer.close()
    assert b"421 4.3.2 shutting down" in heard


async def test_slow_clients_are_sent_away_before_and_within_a_mail(post):
    async with door(post, mail_client_seconds=1.0) as box:
        assert b"421 4.4.2 too slow" in await box.talk()
        to = await box.address()
        reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
        writer.write(head(to) + MAIL)

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"x\r\n")
                await asyncio.sleep(0.05)

        trickle = asyncio.create_task(drip())
        async with asyncio.timeout(60):
            heard = await reader.read()
        trickle.cancel()
        writer.close()
        assert b"421 4.4.2 too slow" in heard


async def test_recipients_are_counted_and_guesses_end_the_connection(post):
    await post.open()
    async with door(post) as box:
        to = await box.address()
        _, _, domain = to.partition("@")
        guesses = b"".join(b"RCPT TO:<agent+%048d@%s>\r\n" % (n, domain.encode()) for n in range(30))
        assert (await dialogue(box, HELLO, guesses)).count(b"550 5.1.1 invalid") <= 11
        many = [await box.address(of=n) for n in range(21)]
        said = await dialogue(box, HELLO, b"".join(b"RCPT TO:<%s>\r\n" % a.encode() for a in many), b"QUIT\r\n")
        assert said.count(b"250 2.1.5") == 20
        assert b"452 4.5.3" in said


async def test_headers_cannot_be_injected_into_what_is_kept(post):
    await post.open()
    await post.publishes()
    subject = "=?utf-8?b?" + base64.b64encode("ok\r\nBcc: x@evil.test\r\n\u202e修复".encode()).decode() + "?="
    raw = mail("line\n\x1b[31mred\u202e").as_bytes().replace(b"Re: [agent-coder] PR ready", subject.encode()).replace(b"\n", b"\r\n")
    async with door(post) as box:
        assert (await box.send(raw, await box.address())).startswith("250")
        async with asyncio.timeout(60):
            while not (state := await post.state()).replies:
                await asyncio.sleep(0.02)
    assert state.replies[0].text == "line\n[31mred"
