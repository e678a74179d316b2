"""What litellm and the clients below it raise, mapped by type to this service's failures. Texts lose their secrets here.

ContextWindowExceededError, UnsupportedParamsError → bad_request
RateLimitError → rate_limited, retried; a used-up quota (error code `insufficient_quota`) → upstream, not retried
Timeout, connection errors, status 408, 409, 425 and 5xx → upstream, retried
everything else with a status (401, 403, 404, 400, …) → upstream, not retried: it goes to the person as it is
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from services.inference.domain import ProviderFailure
from services.inference.openai_errors import RETRIED, retry_after
from services.inference.redaction import redact

_PREFIX = re.compile(r"^(?:litellm\.\w+:\s*|\w+(?:Error|Exception|Timeout):\s*|\w+Exception - )+")


def failure_of(error: Exception, litellm: Any, secrets: Iterable[str] = ()) -> ProviderFailure:
    """The failure that an exception of a completion means."""
    kinds = litellm.exceptions
    status = _status(error, kinds)
    message = redact(_message(error), secrets)
    detail = f"{status}: {message}" if status else message
    if isinstance(error, kinds.ContextWindowExceededError):
        return ProviderFailure("bad_request", f"the prompt is longer than the model's context window: {detail}", status=status)
    if isinstance(error, kinds.UnsupportedParamsError):
        return ProviderFailure("bad_request", detail, status=status)
    if isinstance(error, kinds.RateLimitError):
        spent = _error_code(error) == "insufficient_quota"
        return ProviderFailure("upstream" if spent else "rate_limited", detail, not spent, _retry_after(error), status=status)
    if isinstance(error, kinds.Timeout):
        return ProviderFailure("upstream", detail, retryable=True, paid=True, status=status)
    if isinstance(error, kinds.openai.OpenAIError | httpx.HTTPError):
        retryable = status is None or status in RETRIED or status >= 500
        return ProviderFailure("upstream", detail, retryable, _retry_after(error), paid=_maybe_paid(error), status=status)
    return ProviderFailure("upstream", f"the reply was not understood: {type(error).__name__}: {message}", retryable=True, paid=True)


def _status(error: Exception, kinds: Any) -> int | None:
    """The status that the provider sent; litellm's invented ones for a lost connection or a timeout are none."""
    if isinstance(error, kinds.Timeout | kinds.APIConnectionError | kinds.MidStreamFallbackError) or _http(error) is None:
        return None
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _http(error: Exception) -> httpx.Response | None:
    """The provider's response; one that litellm made up has no headers."""
    response = getattr(error, "response", None)
    return response if isinstance(response, httpx.Response) and response.headers else None


def last_response(error: BaseException) -> httpx.Response | None:
    """The provider's own response among the causes of an error, where one was kept."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, httpx.Response) and response.headers:
            return response
    return None


def _maybe_paid(error: Exception) -> bool:
    """Whether the provider may have worked: not when it said a status, nor when it was never reached."""
    unreached = any(isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout) for cause in _causes(error))
    return _http(error) is None and not unreached


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(12):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _message(error: Exception) -> str:
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    text = said if isinstance(said, str) and said else _PREFIX.sub("", str(getattr(error, "message", "") or error))
    if unreached := next((cause for cause in _causes(error) if isinstance(cause, httpx.ConnectError)), None):
        return f"the model's server cannot be reached: {unreached}"
    return text or type(error).__name__


def _error_code(error: Exception) -> object:
    body = getattr(error, "body", None)
    return body.get("code") if isinstance(body, dict) else None


def _retry_after(error: Exception) -> float | None:
    response = _http(error)
    return None if response is None else retry_after(response.headers)
