"""Faults on demand, for the tests that prove that nothing is lost and nothing is done twice.

`AGENT_CODER_CRASH_AT=editor:before_append:run.edited,…` kills a process at named places, each once: `AGENT_CODER_CRASH_DIR` remembers
which were reached. `AGENT_CODER_DUPLICATE=1` hands every delivery and every question to its handler twice at the same time.
"""

import os
import signal
from pathlib import Path

DUPLICATE = os.environ.get("AGENT_CODER_DUPLICATE") == "1"
_SPECS = tuple(s for s in os.environ.get("AGENT_CODER_CRASH_AT", "").split(",") if s)


def reach(service: str, place: str, what: str) -> None:
    """Kill this process when it is told to die here and has not done so before."""
    if not _SPECS:
        return
    spec = f"{service}:{place}:{what}"
    if spec not in _SPECS:
        return
    marker = Path(os.environ["AGENT_CODER_CRASH_DIR"]) / spec.replace("/", "-")
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
