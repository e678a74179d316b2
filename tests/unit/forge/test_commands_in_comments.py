"""What counts as a command in a comment, and what is only spoken about."""

import pytest

from services.forge.commands import Command, command_in


@pytest.mark.parametrize(
    ("comment", "name", "words"),
    [
        ("/solve", "solve", ""),
        ("  /Solve", "solve", ""),
        ("Please\n/solve only the parser\nThanks", "solve", "Please\nonly the parser\nThanks"),
        ("/retry use ruff", "retry", "use ruff"),
        ("/cancel", "cancel", ""),
        ("/approve", "approve", ""),
        ("/deny too risky", "deny", "too risky"),
        ("@agent-coder please do", "solve", "please do"),
        ("@Agent-Coder[bot]: please do", "solve", "please do"),
        ("请@agent-coder修复", "solve", "请修复"),
        ("@agent-coder，修复它", "solve", "修复它"),
        ("@agent-coder /retry again", "retry", "again"),
        ("> what?\n\n/retry\n```\ncode\n```", "retry", "> what?\n\n\n```\ncode\n```"),
        ("```\ncode\n````\n/cancel", "cancel", "```\ncode\n````"),
    ],
)
def test_commands_and_mentions(comment, name, words):
    assert command_in(comment, "agent-coder") == Command(name, words)


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "I would /solve this",
        "/solver",
        "/solve-it",
        "/solve/it",
        "//solve",
        "    /solve",
        "> /solve",
        "  > @agent-coder do it",
        "```\n/solve\n```",
        "~~~\n@agent-coder\n~~~",
        "````\n```\n/solve\n```\n````",
        "```\nnever closed\n/solve",
        "see `@agent-coder`",
        "<!-- /solve -->",
        "<!--\n/solve\n-->",
        "<!-- @agent-coder",
        "@agent-coder-2 do it",
        "@agent-coder/team do it",
        "mail@agent-coder",
        "https://github.com/@agent-coder",
    ],
)
def test_what_is_quoted_shown_or_meant_for_others_is_no_command(comment):
    assert command_in(comment, "agent-coder") is None
