"""What a server that speaks OpenAI's protocol says in place of a reply, mapped to this service's failures. Texts lose their secrets here.

a prompt longer than the context window (by its code, or by the words of the servers in use) → bad_request
429 → rate_limited, retried; a used-up quota (error code `insufficient_quota`) → upstream, not retried
408, 409, 425 and 5xx, timeouts, lost connections, an answer that is no reply → upstream, retried
everything else with a status (401, 403, 404, 400, …) → upstream, not retried: it goes to the person as it is
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.inference.domain import ProviderFailure, RawReply, Upstream
from services.inference.redaction import redact, without_secrets

RETRIED = (408, 409, 425, 429)
MOST_SHOWN = 200_000
_TOO_LONG = re.compile(r"maximum context length|context.{0,20}(?:window|size|limit|exceeded)|exceed\w* .{0,40}context", re.IGNORECASE)


@dataclass(frozen=True)
class Said:
    """An answer of a server; `status` 0 is an error inside of a stream."""

    status: int
    headers: Mapping[str, str]
    body: str


def failure_of(said: Said, secrets: Iterable[str] = ()) -> ProviderFailure:
    """The failure that an answer means."""
    code, words = _error(said.body)
    message = redact(words, secrets)
    status = said.status or None
    detail = f"{status}: {message}" if status else message
    if "context_length" in code or "exceed_context" in code or (status in (None, 400, 413) and _TOO_LONG.search(message)):
        return ProviderFailure("bad_request", f"the prompt is longer than the model's context window: {detail}", status=status)
    if status == 429:
        spent = code == "insufficient_quota"
        return ProviderFailure("upstream" if spent else "rate_limited", detail, not spent, retry_after(said.headers), status=status)
    retryable = status is None or status in RETRIED or status >= 500
    return ProviderFailure("upstream", detail, retryable, retry_after(said.headers), paid=status is None, status=status)


def broken(error: Exception, timeout_seconds: float, secrets: Iterable[str] = ()) -> ProviderFailure:
    """The failure of a call that got no whole answer. Nothing was paid for where the server was never reached."""
    import aiohttp  # whoever asks such a server has it; the others do without

    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ProviderFailure("upstream", f"the model's server cannot be reached: {redact(str(error), secrets)}", retryable=True)
    if isinstance(error, TimeoutError):
        return ProviderFailure("upstream", f"no reply within {timeout_seconds:g} s", retryable=True, paid=True)
    return ProviderFailure("upstream", redact(f"{type(error).__name__}: {error}", secrets), retryable=True, paid=True)


def misunderstood(text: str) -> ProviderFailure:
    """The failure of an answer that is no reply."""
    return ProviderFailure("upstream", f"the reply was not understood: {redact(text)[:300] or 'it is empty'}", retryable=True, paid=True)


def shown(said: Said, secrets: Iterable[str], reply: RawReply | None = None, failure: ProviderFailure | None = None) -> Upstream:
    """An exchange as an operator may see it."""
    known = tuple(secrets)
    headers = {name: without_secrets(value, known) for name, value in said.headers.items() if name.lower() != "set-cookie"}
    body = said.body or (failure.detail if failure else "")
    return Upstream(without_secrets(body, known)[:MOST_SHOWN], said.status or None, headers, reply, failure)


def _error(body: str) -> tuple[str, str]:
    """The code and the words of an error: OpenAI's object, or one of the forms that other servers use; else the text itself."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "", body
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        words = next((inner[key] for key in ("message", "detail", "error") if isinstance(inner.get(key), str)), body)
        return str(inner.get("code") or inner.get("type") or ""), words
    return "", inner if isinstance(inner, str) else body


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `Retry-After-Ms` or `Retry-After` (RFC 9110, section 10.2.3; its date form is not used by model providers)."""
    known = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = known.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value) / unit
    return None
