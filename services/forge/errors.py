"""What GitHub's answers mean. Every text says what happened and what to do; none holds a token.

Exception
├── GitHubError           an answer of GitHub that is no success and not worth another try by itself
│   ├── NotFound          404: it is not there, or the App may not see it
│   ├── Refused           any other no; `status` and `reason` are GitHub's
│   └── NotInstalled      the App is not installed where the repository is
├── NotConfigured         there is no App to speak for, or its key cannot be read
└── libs.bus.Retryable    GitHub is away, or a rate limit: `after` is what it asks for
"""

from collections.abc import Mapping
from typing import Any

from libs.bus import Retryable

_SECONDARY = ("secondary rate limit", "abuse detection", "retry your request again later", "wait a few minutes before you try again")
_SECONDARY_SECONDS = 60.0
_LONGEST_SECONDS = 3900.0


class GitHubError(Exception):
    """GitHub said no."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"GitHub answered {status}: {reason}")
        self.status = status
        self.reason = reason


class NotFound(GitHubError):
    """It is not there, or the App may not see it."""


class Refused(GitHubError):
    """GitHub will not do it."""


class NotInstalled(GitHubError):
    """The App is not installed where the repository is."""


class NotConfigured(Exception):
    """There is no GitHub App to speak for."""


def meaning(status: int, data: Any, headers: Mapping[str, str], now: float) -> Exception:
    """The error that an answer means; `now` is seconds since 1970.

    Limits: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api ("Exceeding the rate limit").
    """
    reason = _reason(data)
    if status in (403, 429) and (after := wait_seconds(reason, headers, now)) is not None:
        return Retryable(f"GitHub's rate limit is used up; asked again in {after:.0f} s", after=after)
    if status == 429 or status >= 500:
        return Retryable(f"GitHub answered {status}: {reason}")
    return NotFound(status, reason) if status == 404 else Refused(status, reason)


def wait_seconds(reason: str, headers: Mapping[str, str], now: float) -> float | None:
    """How long a limit asks to wait; None when the answer is about no limit. The secondary kind may tell by its text alone."""
    if (told := _number(headers.get("retry-after"))) is not None:
        return min(max(told, 1.0), _LONGEST_SECONDS)
    if headers.get("x-ratelimit-remaining") == "0" and (reset := _number(headers.get("x-ratelimit-reset"))) is not None:
        return min(max(reset - now + 1.0, 1.0), _LONGEST_SECONDS)
    return _SECONDARY_SECONDS if any(words in reason.lower() for words in _SECONDARY) else None


def _number(text: str | None) -> float | None:
    return float(text) if text and text.strip().isdigit() else None


def _reason(data: Any) -> str:
    """GitHub's message and the messages of its field errors, in one line."""
    if not isinstance(data, Mapping):
        return "no reason given"
    words = [str(data.get("message") or data.get("data") or "no reason given")]
    for fault in data.get("errors") or ():
        words.append(str(fault.get("message") or fault.get("code") or "") if isinstance(fault, Mapping) else str(fault))
    return "; ".join(" ".join(w.split()) for w in words if w)[:1000]
