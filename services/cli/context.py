"""What commands share: the API of the server that the environment names, printing, and the options that are the same everywhere."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from services.cli.errors import Usage

if TYPE_CHECKING:
    from rich.console import Console

    from services.cli.client import Api

ResultT = TypeVar("ResultT")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or enough of its beginning.")]


def api() -> "Api":
    """The client of the server that the environment or the home folder names."""
    from services.cli.client import Api, address

    return Api(address(settings()))


def settings() -> Any:
    """The command line's settings.

    Raises:
        Usage: a variable is wrong.
    """
    from pydantic import ValidationError

    from services.cli.settings import CliSettings

    try:
        return CliSettings()
    except ValidationError as error:
        faults = "; ".join(f"AGENT_CODER_{str(f['loc'][0]).upper()}: {f['msg']}" for f in error.errors(include_url=False))
        raise Usage(faults) from error


def out() -> "Console":
    """The console of the answer."""
    from services.cli.render import console

    return console()


def show(value: Any, as_json: bool, words: Callable[[], None]) -> None:
    """The answer as JSON, or in words."""
    if not as_json:
        words()
        return
    import sys

    from services.cli.home import as_json as text

    print(text(value, only_ascii=not (sys.stdout.encoding or "").lower().startswith("utf")))
