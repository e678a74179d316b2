"""What the scanner finds, where, and what it takes for no secret. The secrets are put together here, so that this file holds none."""

import pytest

from libs.scanner import Finding, describe, scan, scan_diff

GITHUB = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SECRETS = [
    (GITHUB, "GitHub Token"),
    ("github" + "_pat_" + "1" * 50, "GitHub Token"),
    ("AK" + "IA" + "Q3EGRZ5TYUIOPLKJ", "AWS Access Key"),
    ("-----BEGIN " + "RSA PRIVATE KEY-----", "Private Key"),
    ("-----BEGIN OPENSSH " + "PRIVATE KEY-----", "Private Key"),
    ("xox" + "b-123456789012-1234567890123-abcdefghijklmnopqrstuvwx", "Slack Token"),
    ("sk_" + "live_" + "1234567890abcdefghijklmnop", "Stripe Access Key"),
    ("sk-" + "ant-api03-" + "Zx9" * 20, "Anthropic API Key"),
    ("sk-" + "proj-" + "Zx9_" * 20, "OpenAI Token"),
    ("AI" + "za" + "SyA1234567890abcdefghijklmnopqrstuv", "Google API Key"),
    ("https://deploy:" + "hunter2hunter2" + "@example.org/x.git", "Basic Auth Credentials"),
    ("act_" + "q7R8" * 10, "agent-coder Token"),
]


@pytest.mark.parametrize(("secret", "kind"), SECRETS)
def test_a_secret_is_found_with_its_place_and_not_repeated(secret: str, kind: str) -> None:
    text = f"first\nvalue = '{secret}'\nlast"
    found = scan(text, "conf/app.py")
    assert Finding("conf/app.py", 2, kind) in found
    assert "conf/app.py, line 2" in describe(found)
    assert secret not in describe(found)
    assert secret not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        '"integrity": "sha512-Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYg=="',
        "password = 'secret'",
        "postgres://user:password@127.0.0.1/db",
        "http://x:$TOKEN@127.0.0.1/git/app.git",
        "AKIAIOSFODNN7EXAMPLE",
        "密码在环境变量里",
        "",
    ],
)
def test_what_is_no_secret(text: str) -> None:
    assert scan(text) == ()


def test_a_comment_cannot_make_it_look_away() -> None:
    assert scan(f"key = '{GITHUB}'  # pragma: allowlist secret")


def test_only_added_lines_of_a_diff_count_by_file_and_line_of_the_new_side() -> None:
    diff = f"""diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1,3 +1,4 @@
 one
-old = '{GITHUB}'
+new = 1
+key = '{GITHUB}'
 three
@@ -20 +21,2 @@ def x():
+++ '{GITHUB}'
 end
\\ No newline at end of file
diff --git "a/b c.py" "b/b c.py"
--- /dev/null
+++ "b/b c.py"
@@ -0,0 +1,2 @@
+x
+{GITHUB}
"""
    assert scan_diff(diff) == (
        Finding("a.py", 3, "GitHub Token"),
        Finding("a.py", 21, "GitHub Token"),
        Finding("b c.py", 2, "GitHub Token"),
    )


def test_a_name_that_is_a_secret_is_told_and_not_repeated() -> None:
    diff = f"diff --git a/{GITHUB} b/{GITHUB}\nnew file mode 100644\n--- /dev/null\n+++ b/{GITHUB}\n@@ -0,0 +1 @@\n+{GITHUB}\n"
    found = scan_diff(diff)
    assert [f.path for f in found] == ["the name of file 1 of the change", "file 1 of the change"]
    assert GITHUB not in describe(found)


def test_a_secret_in_the_middle_of_a_long_line_is_found() -> None:
    for place in (0, 1590, 1610, 1990, 2010, 50_000):
        assert scan("x" * place + f" {GITHUB} " + "y" * 1000), place


@pytest.mark.parametrize("line", ["://a:" * 20_000, "://" * 30_000 + ":", "a" * 200_000, "aws" * 50_000, "eyJ" * 50_000])
def test_a_hostile_line_takes_no_more_than_its_share(line: str) -> None:
    assert scan(line) == ()  # without the windows this takes hours


def test_many_findings_are_cut_and_counted() -> None:
    found = scan("\n".join([GITHUB] * 500))
    assert len(found) == 200
    assert describe(found).endswith("and 190 more")
