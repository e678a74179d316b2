"""What a command says when it cannot do what was asked, with its exit code.

CliError (1) ── Usage (2) · Unreachable (3) · ApiProblem (1, or 2 for a request that was refused as it stands)
"""

import re


class CliError(Exception):
    """The command failed. `hint` says what to do next."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Usage(CliError):
    """The command was called wrongly."""

    code = 2


class Unreachable(CliError):
    """No server answers."""

    code = 3


class ApiProblem(CliError):
    """The server said no, in the form of RFC 9457."""

    def __init__(self, status: int, title: str, detail: str, hint: str = "", code: str = "") -> None:
        said = f"--{detail.removeprefix('query.')}" if detail.startswith("query.") else detail or title
        super().__init__(said, _hint(status, hint, code))
        self.status = status
        self.code = 2 if status in (400, 404, 413, 422) else 1


def _hint(status: int, hint: str, code: str) -> str:
    """What to do next; the server speaks of HTTP, this program of its commands."""
    if not re.search(r"\b(GET|POST|DELETE) |Bearer", hint):
        return hint or _ADVICE.get(status, "")
    if "/api/dead" in hint:
        return "`agent-coder dead list` lists the letters."
    return _BY_CODE.get(code) or _ADVICE.get(status, "")


_BY_CODE = {
    "run-ended": "`agent-coder retry RUN --from STEP` sends a step to work again.",
    "waiting": "`agent-coder approve RUN` or `agent-coder deny RUN` answers it.",
    "nothing-to-decide": "`agent-coder show RUN` tells what it does.",
}
_ADVICE = {
    401: "The token is wrong. Set AGENT_CODER_TOKEN, or AGENT_CODER_HOME to the server's home folder.",
    404: "`agent-coder runs` lists what there is.",
    422: "--help tells what a command takes.",
    429: "Wait a moment, then try again.",
    503: "A part of the server is not ready. `agent-coder doctor` shows what is missing; with `up --split` look at the log of the service.",
}
