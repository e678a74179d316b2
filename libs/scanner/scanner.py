"""Secrets in text and in unified diffs, by the detectors of detect-secrets that know a token by its shape, and shapes that it lacks.

Its detectors by entropy and by variable names are left out: on code they find hashes and test data. Comments that
ask a scanner to look away are not heeded, since a model may write them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

_DETECTORS = (
    ("artifactory", "ArtifactoryDetector"),
    ("aws", "AWSKeyDetector"),
    ("azure_storage_key", "AzureStorageKeyDetector"),
    ("basic_auth", "BasicAuthDetector"),
    ("cloudant", "CloudantDetector"),
    ("discord", "DiscordBotTokenDetector"),
    ("github_token", "GitHubTokenDetector"),
    ("gitlab_token", "GitLabTokenDetector"),
    ("ibm_cloud_iam", "IbmCloudIamDetector"),
    ("jwt", "JwtTokenDetector"),
    ("mailchimp", "MailchimpDetector"),
    ("npm", "NpmDetector"),
    ("openai", "OpenAIDetector"),
    ("private_key", "PrivateKeyDetector"),
    ("pypi_token", "PypiTokenDetector"),
    ("sendgrid", "SendGridDetector"),
    ("slack", "SlackDetector"),
    ("softlayer", "SoftlayerDetector"),
    ("square_oauth", "SquareOAuthDetector"),
    ("stripe", "StripeDetector"),
    ("telegram_token", "TelegramBotTokenDetector"),
    ("twilio", "TwilioKeyDetector"),
)
_MORE = (
    ("GitHub Token", re.compile(r"\bgithub_pat_[A-Za-z0-9_]{36,}")),
    ("Anthropic API Key", re.compile(r"\bsk-ant-[A-Za-z0-9-]{2,12}-[A-Za-z0-9_-]{20,}")),
    ("OpenAI Token", re.compile(r"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}")),
    ("Google API Key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b")),
    ("age Secret Key", re.compile(r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b")),
    ("agent-coder Token", re.compile(r"\bact_[A-Za-z0-9_-]{32,}")),
)
_PLACEHOLDER = re.compile(r"[$<{%*]|example|changeme|^(?:x+|\.+|…|pass(?:word|wd)?|pwd|secret|token|user|test)$", re.IGNORECASE)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_WINDOW, _OVERLAP, _MOST = 2000, 400, 200


@dataclass(frozen=True, order=True)
class Finding:
    """Something that looks like a secret. `path` is empty in a text that is no file; lines count from 1."""

    path: str
    line: int
    kind: str


def scan(text: str, path: str = "") -> tuple[Finding, ...]:
    """What looks like a secret in a text, 200 findings at most, in order. Takes about 0.1 ms a line; call it in a thread."""
    return _gather((path, number, line) for number, line in enumerate(text.splitlines(), 1))


def scan_diff(diff: str) -> tuple[Finding, ...]:
    """What looks like a secret in the added lines of a unified diff, by file and line of the new side, and in names of files (git-diff(1)).

    A name that looks like one is not repeated: its file goes by its number in the diff.
    """
    return _gather(_added(diff.split("\n")))


def describe(findings: Sequence[Finding], most: int = 10) -> str:
    """The findings for a person: kind, file and line, and never the secret."""
    shown = [f"{f.kind} in {f.path or 'the text'}, line {f.line}" for f in findings[:most]]
    return "; ".join(shown) + (f"; and {len(findings) - most} more" if len(findings) > most else "")


def _gather(lines: Iterator[tuple[str, int, str]]) -> tuple[Finding, ...]:
    found: dict[Finding, None] = {}
    for path, number, line in lines:
        for start in range(0, max(len(line), 1), _WINDOW - _OVERLAP):
            found |= dict.fromkeys(Finding(path, number, kind) for kind in _kinds(line[start : start + _WINDOW]))
        if len(found) >= _MOST:
            break
    return tuple(found)[:_MOST]


def _kinds(text: str) -> Iterator[str]:
    for detector in _detectors():
        if any(not _PLACEHOLDER.search(secret) for secret in detector.analyze_string(text)):
            yield str(detector.secret_type)
    for kind, pattern in _MORE:
        if any(not _PLACEHOLDER.search(secret) for secret in pattern.findall(text)):
            yield kind


@cache
def _detectors() -> tuple[Any, ...]:
    return tuple(getattr(import_module(f"detect_secrets.plugins.{module}"), name)() for module, name in _DETECTORS)


def _added(lines: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    path, number, old_left, new_left, files, hidden = "", 0, 0, 0, 0, ""
    for line in lines:
        if old_left <= 0 and new_left <= 0:
            if line.startswith("diff --git "):
                files += 1
                yield f"the name of file {files} of the change", 1, line
                hidden = f"file {files} of the change" if scan(line) else ""
            elif line.startswith("+++ "):
                path = hidden or line[4:].strip().strip('"').removeprefix("b/")
            elif hunk := _HUNK.match(line):
                old_left, number, new_left = int(hunk[1] or 1), int(hunk[2]), int(hunk[3] or 1)
        elif line.startswith("+"):
            yield path, number, line[1:]
            number, new_left = number + 1, new_left - 1
        elif line.startswith("-"):
            old_left -= 1
        elif not line.startswith("\\"):
            number, old_left, new_left = number + 1, old_left - 1, new_left - 1
