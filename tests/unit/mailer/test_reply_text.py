"""What the writer of a reply typed, whatever mail program sent it."""

import re

import pytest

from services.mailer.html_text import html_to_text
from services.mailer.reply_text import new_words

REPLIES = {
    "gmail": ("Fine by me.", "\n\nOn Sun, Nov 29, 2026 at 9:05 PM agent-coder <agent@example.org> wrote:\n\n> done\n"),
    "gmail, two lines": ("Fine by me.", "\n\nOn Sun, Nov 29, 2026 at 9:05 PM agent-coder <\nagent+abcd@example.org> wrote:\n\n> done\n"),
    "apple": ("Fine by me.", "\n\nSent from my iPhone\n\n> On 29 Nov 2026, at 21:05, agent <agent@example.org> wrote:\n> \n> done\n"),
    "outlook": (
        "Fine by me.",
        "\n\n________________________________\nFrom: agent <agent@example.org>\nSent: Sunday\nTo: dev\nSubject: x\n\ndone",
    ),
    "outlook, mobile": (
        "Fine by me.",
        "\n\nGet Outlook for iOS\n____________\nFrom: agent <agent@example.org>\nSent: Sunday\nSubject: x\n\ndone",
    ),
    "old outlook": ("Fine by me.", "\n\n-----Original Message-----\nFrom: agent\nSent: Sunday\n\ndone"),
    "forwarded": ("Fine by me.", "\n\nBegin forwarded message:\n\ndone"),
    "中文 gmail": ("好的，请合并。", "\n\nagent <agent@example.org> 于2026年11月29日周日 21:05写道：\n\n> 修好了\n"),
    "中文 apple": ("请加一个测试", "\n\n发自我的 iPhone\n\n> 在 2026年11月29日，21:05，agent <agent@example.org> 写道：\n> 修好了\n"),
    "中文 apple, unmarked": (
        "请加一个测试",
        "\n\n发自我的iPhone\n\n在 2026年11月29日，21:05，agent <agent@example.org> 写道：\n\n修好了\n",
    ),
    "中文 outlook": (
        "同意",
        "\n\n________________________________\n发件人: agent <agent@example.org>\n发送时间: 2026年11月29日\n收件人: d\n主题: x\n\n修好了",
    ),
    "qq": ("收到", '\n\n------------------ 原始邮件 ------------------\n发件人: "agent"<agent@example.org>;\n主题: x\n\n修好了'),
    "163": ("收到了", '\n\n在 2026-11-29 21:05:11，"agent" <agent@example.org> 写道：\n\n修好了'),
    "繁體": ("可以", "\n\nagent <agent@example.org> 於 2026年11月29日 寫道：\n\n> 修好了"),
    "日本語 gmail": ("お願いします。", "\n\n2026年11月29日(日) 21:05 agent <agent@example.org>:\n\n> 直しました\n"),
    "日本語 apple": ("了解です。", "\n\n2026/11/29 21:05、agent <agent@example.org>のメール:\n\n> 直しました"),
    "日本語 outlook": ("了解です", "\n\n差出人: agent <agent@example.org>\n送信日時: 2026年11月29日\n宛先: dev\n件名: x\n\n直しました"),
    "日本語": ("了解です。", "\n\nagentさんは書きました：\n> 直しました"),
    "한국어": ("좋아요", "\n\n2026년 11월 29일 (일) 오후 9:05, agent <agent@example.org>님이 작성:\n\n> 끝"),
    "deutsch": ("Passt.", "\n\nAm So., 29. Nov. 2026 um 21:05 Uhr schrieb agent <agent@example.org>:\n\n> fertig"),
    "deutsch outlook": ("Passt.", "\n\nVon: agent <agent@example.org>\nGesendet: Sonntag\nAn: dev\nBetreff: x\n\nfertig"),
    "français": ("D'accord", "\n\nLe dim. 29 nov. 2026 à 21:05, agent <agent@example.org> a écrit :\n\n> fini"),
    "français outlook": ("D'accord", "\n\nDe : agent <agent@example.org>\nEnvoyé : dimanche\nÀ : dev\nObjet : x\n\nfini"),
    "español": ("Vale", "\n\nEl dom, 29 nov 2026 a las 21:05, agent (<agent@example.org>) escribió:\n\n> hecho"),
    "português": ("Ok", "\n\nEm dom., 29 de nov. de 2026 às 21:05, agent <agent@example.org> escreveu:\n\n> feito"),
    "русский": ("Хорошо", "\n\n29.11.2026 21:05, agent <agent@example.org> пишет:\n> готово"),
    "signature": ("Fine by me.", "\n\n-- \nreviewer\nexample.org"),
    "dashed name": ("Fine by me.", "\n\n-Reviewer Example"),
}


@pytest.mark.parametrize("program", REPLIES)
def test_the_quote_is_cut_and_the_words_stay(program):
    words, rest = REPLIES[program]
    assert new_words(words + rest) == words
    assert new_words((words + rest).replace("\n", "\r\n")) == words


@pytest.mark.parametrize(
    "text",
    [
        "Please apply:\n\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new",
        "first\n\n---\n\nsecond",
        "Options:\n- one\n- two\n\nFrom: the docs it follows that it works.",
        "Fix the header:\n\nFrom: is missing\nSubject: also",
        "Sent from my desk, which is easier.",
        "On Monday I looked at it, and what you wrote is right: it works.",
        "说明：\n\n于是我们改了这里。",
        "a -- b",
    ],
)
def test_what_only_looks_like_a_quote_stays(text):
    assert new_words(text) == text


def test_answers_between_quoted_lines_are_kept_with_what_they_answer():
    mail = (
        "On Sun agent <agent@example.org> wrote:\n> Which parser?\n\nThe old one.\n\n> And the tests?\n\n请加上。\n\n> bye\n\n-- \nreviewer"
    )
    assert re.sub(r"\n+", "\n", new_words(mail)) == "The old one.\n> And the tests?\n请加上。"


def test_nothing_but_quotes_is_no_word():
    assert new_words("> all\n> quoted\n") == ""
    assert new_words("-----Original Message-----\nFrom: a@example.org\n\nold words") == ""
    assert new_words("在 2026年11月29日，agent <agent@example.org> 写道：\n\n修好了\n") == ""


def test_html_of_mail_programs_becomes_text_with_marked_quotes():
    gmail = (
        '<div dir="ltr">Please <b>add</b> a test&nbsp;for <a href="https://example.org/1">this case</a>.<br><ul><li>one<li>两</ul></div>'
        '<div class="gmail_quote"><div class="gmail_attr">On Sun agent &lt;agent@example.org&gt; wrote:</div>'
        "<blockquote>done</blockquote></div>"
    )
    assert new_words(html_to_text(gmail)) == "Please add a test for this case (https://example.org/1).\n- one\n- 两"
    outlook = (
        "<html><head><style>p{}</style></head><body><p>Fine</p><p>by me</p><div id='Signature'>Reviewer</div>"
        "<div style='border:none;border-top:solid #E1E1E1 1.0pt'><p><b>From:</b> agent</p></div><p>old</p></body></html>"
    )
    assert new_words(html_to_text(outlook)) == "Fine\n\nby me"
    assert new_words(html_to_text("<p>yes</p><div id=appendonsend></div><div id=divRplyFwdMsg>old</div>")) == "yes"
    inline = "<blockquote>Which?</blockquote><p>The old one.</p><blockquote>Tests?</blockquote><p>Yes.</p>"
    assert re.sub(r"\n+", "\n", new_words(html_to_text(inline))) == "The old one.\n> Tests?\nYes."


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 200_000 + "x",
        "<blockquote>" * 50_000 + "x",
        "<a href=x>" * 100_000,
        "<table><tr><td>" * 30_000,
        "<p><b id=1>" * 50_000,
        "<b id=x><i>" * 150 + "<p>x" * 100_000,
        "<p" * 300_000,
        "<!--" * 200_000,
    ],
)
def test_hostile_html_is_bounded(html):
    assert len(html_to_text(html)) <= 2 * len(html)


@pytest.mark.parametrize(
    "line", ["On 2024 2024 2024 2024 <a@b> <a@b>: \n", ">", "\n", "From: a@b\n", "2024 " * 110 + ":\n", "_" * 30 + "\n"]
)
def test_hostile_text_is_bounded(line):
    assert isinstance(new_words(line * (1_000_000 // len(line))), str)
