"""The program `agent-coder`. Exit codes: 0 done, 1 the run or the command failed, 2 called wrongly, 3 no server."""

import io
import sys

from services.cli.app import app
from services.cli.errors import CliError


def main() -> int:
    """Run one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter, as GBK lacks ¥, shows ? for it
    try:
        app(prog_name="agent-coder")
    except CliError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return error.code
    except UnicodeEncodeError as error:
        print(f"error: The locale's encoding, {error.encoding}, cannot name {error.object!a}.", file=sys.stderr)
        print("Use a UTF-8 locale: LC_ALL=C.UTF-8 agent-coder …", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
