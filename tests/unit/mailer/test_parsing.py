"""Reading one raw message: what it holds, and how little a hostile one can ask for."""

import tracemalloc

import pytest

from services.mailer.charsets import decode
from services.mailer.parsing import Unreadable, parse

HEAD = b"From: Dev <dev@example.org>\r\nMessage-ID: <1@example.org>\r\nMIME-Version: 1.0\r\n"


def text_part(content: bytes, *headers: bytes) -> bytes:
    return HEAD + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + content


@pytest.mark.parametrize(
    "charset",
    ["gb2312", "gb18030", "big5", "iso-2022-jp", "euc-kr", "euc-jp", "shift_jis", "windows-1251", "windows-1252", "koi8-r", "utf-16"],
)
def test_any_charset_is_read(charset):
    words = {"gb": "修复登录", "bi": "修復登錄", "is": "直しました", "sh": "直しました", "wi": "Grüße", "ko": "готово", "ut": "修复"}
    special = {"euc-kr": "고쳤다", "euc-jp": "直しました", "windows-1251": "готово"}
    words = special[charset] if charset in special else words[charset[:2]]
    mail = parse(text_part(words.encode(charset), f'Content-Type: text/plain; charset="{charset}"'.encode()))
    assert mail.plain == words


@pytest.mark.parametrize("charset", ["", "no-such", "punycode", "idna", "zip", "undefined", "hex", "\0", "x" * 999])
def test_a_strange_charset_is_read_as_utf8(charset):
    assert decode("修复登录".encode(), charset) == "修复登录"


def test_utf7_is_not_read():
    with pytest.raises(Unreadable, match="UTF-7"):
        parse(text_part(b"+AD4-", b"Content-Type: text/plain; charset=utf-7"))


@pytest.mark.parametrize(
    ("encoding", "content", "words"),
    [
        (b"base64", b"5L+u5aSN", "修复"),
        (b"base64", b"5L+u5a!!SN=\r\n=", "修复"),
        (b"base64", b"5L+u5aSN5", None),
        (b"quoted-printable", b"=E4=BF=AE=E5=A4=8D=\r\n!", "修复!"),
        (b"quoted-printable", b"a=ZZ=", "a=ZZ"),
        (b"x-uuencode", b"begin 644 x\r\n#0V%T\r\n`\r\nend\r\n", "Cat"),
        (b"x-uuencode", b"begin 644 x\r\n\xff\xff\r\n", None),
        (b"no-such", b"as it is", "as it is"),
    ],
)
def test_transfer_encodings_whole_and_broken(encoding, content, words):
    plain = parse(text_part(content, b"Content-Type: text/plain; charset=utf-8", b"Content-Transfer-Encoding: " + encoding)).plain
    assert words is None or plain.rstrip("\r\n").rstrip("=") == words


def test_headers_and_names_of_files():
    raw = (
        HEAD + b"Subject: =?utf-8?B?5L+u5aSN?= =?gb2312?B?tcfCvA==?=\r\n =?utf-8?q?_now=0d=0aBcc:x?=\r\nReferences: <a@b>\r\n <c@d>\r\n"
        b"In-Reply-To: <c@d>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nhello\r\n--b\r\n"
        b"Content-Type: application/pdf\r\n"
        b"Content-Disposition: attachment; filename*=utf-8''..%2F..%2F%E6%97%A5%E5%BF%97.pdf\r\n\r\n%PDF\r\n--b\r\n"
        b'Content-Type: image/png; name="=?utf-8?B?5Zu+?=.png"\r\n\r\nx\r\n--b\r\nContent-Type: text/csv\r\n\r\na,b\r\n--b--\r\nafter'
    )
    mail = parse(raw)
    assert mail.sender == "dev@example.org"
    assert mail.words("Subject") == "修复登录 now Bcc:x"
    assert mail.references == ("<a@b>", "<c@d>")
    assert [(f.name, f.content) for f in mail.files] == [("日志.pdf", b"%PDF"), ("图.png", b"x"), ("part-3.csv", b"a,b")]
    assert mail.plain == "hello"


@pytest.mark.parametrize(
    "value",
    [
        b"dev@example.org, boss@example.org",
        b"dev@example.org <boss@example.org>",
        b"<dev@example.org> <boss@example.org>",
        b"dev@example.org)boss@example.net",
        b"group: dev@example.org;",
        b'"a" <dev@example.org',
        b"dev@example.org\r\nFrom: boss@example.org",
        b"<@relay.example.org:dev@example.org>",
        b"",
        b"nobody",
    ],
)
def test_a_sender_that_can_be_read_in_two_ways_is_none(value):
    assert parse(b"From: " + value + b"\r\n\r\nx").sender is None


@pytest.mark.parametrize(
    "value",
    [
        b"dev@example.org",
        b"<Dev@Example.org>",
        b'"Dev, A. <x@y>" <dev@example.org>',
        b"=?utf-8?B?5L+u?= <dev@example.org>",
        b"dev@example.org (Dev)",
    ],
)
def test_the_sender(value):
    assert parse(b"From: " + value + b"\r\n\r\nx").sender == "dev@example.org"


def nested(depth: int) -> bytes:
    head = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(depth))
    return HEAD + head + b"\r\nx"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (nested(1000), "nested deeper"),
        (HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n" * 1_000_000, "more than 200 parts"),
        (b"X: " + b"y" * 2_000_000 + b"\r\n\r\n", "larger than 256 KB"),
        (b"X: y\r\n" * 5_000 + b"\r\n", "headers"),
        (HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" + b"X: y\r\n" * 500_000, "larger than 64 KB"),
        (HEAD + b'Content-Type: text/plain; x="' + b";" * 200_000 + b"\r\n\r\nx", "structure"),
        (HEAD + b"Content-Disposition: attachment; x=" + b"y" * 200_000 + b"\r\n\r\nx", "structure"),
        (HEAD + b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: a/b" + b";c=d" * 200 + b"\r\n\r\n", "structure"),
    ],
)
def test_a_bomb_is_refused_in_little_memory(raw, why):
    tracemalloc.start()
    with pytest.raises(Unreadable, match=why):
        parse(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(raw) + 8_000_000


@pytest.mark.parametrize("count", [7, 2000])
def test_whatever_the_bytes_are_there_is_no_other_exception(count):
    import random

    words = [
        b"From: ",
        b"\r\n",
        b"\n",
        b"--b",
        b"boundary=",
        b'"',
        b";",
        b"=?utf-8?",
        b"?=",
        b"Content-Type: ",
        b"multipart/",
        b"\0",
        b"\xff",
        b"(",
    ]
    words += [
        b"filename*0*=",
        b"''%",
        b"charset*=",
        b"message/rfc822",
        b"begin 644 x",
        b"Content-Transfer-Encoding: base64",
        b":",
        b" ",
        b"<a@b>",
    ]
    for seed in range(count):
        dice = random.Random(seed)
        raw = b"".join(dice.choice(words) for _ in range(dice.randrange(60)))
        try:
            mail = parse(raw)
        except Unreadable:
            continue
        assert isinstance(mail.words("From"), str)
        assert isinstance(mail.references, tuple)
        assert mail.sender != ""
