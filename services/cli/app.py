"""The commands, by name. Nothing of the services is imported before a command needs it."""

import gc
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import typer

from services.cli import chat_commands, dead_commands, run_commands
from services.cli.context import AsJson, out, settings, show
from services.cli.errors import CliError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="An issue goes in, a verified commit comes out.",
)
Home = Annotated[Path | None, typer.Option("--home", help="Data and secrets; by default AGENT_CODER_HOME, else ~/.agent-coder.")]
Port = Annotated[int, typer.Option("--port", envvar="AGENT_CODER_PORT", min=0, max=65_535, help="HTTP port; 0 is any free one.")]


@app.command()
def up(
    split: Annotated[bool, typer.Option("--split", help="One supervised process for each service.")] = False,
    apart: Annotated[
        list[str] | None, typer.Option("--apart", metavar="SERVICE", help="A supervised process for this service; may be given again.")
    ] = None,
    port: Port = 8787,
    home: Home = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Do not wait for the disk on every record: faster, a power cut may lose the last.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what services do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start everything on this machine; Ctrl-C stops it."""
    import logging

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not verbose:
        logging.getLogger("services.inference.__main__").setLevel(logging.ERROR)  # what it warns of stands in the ready lines
    gc.disable()  # until all is loaded: there is no garbage in what is imported
    from services.cli import up as starting

    where = home or settings().home
    options = starting.UpOptions(home=where, port=port, apart=_apart(apart or (), split=split), relaxed=relaxed)
    starting.up(options, _ready_as_json(where) if as_json else _say)


def _apart(names: Collection[str], *, split: bool) -> tuple[str, ...]:
    """The services that get a process of their own, in the order in which they are started."""
    from services.cli.up import SERVICES

    if unknown := sorted(set(names) - set(SERVICES)):
        raise typer.BadParameter(f"there is no service {', '.join(unknown)}; the services are: {', '.join(SERVICES)}", param_hint="--apart")
    return tuple(name for name in SERVICES if split or name in names)


def _say(source: str, line: str) -> None:
    print(line if source in ("up", "ready") else f"{source:>13} | {line}", flush=True)


def _ready_as_json(home: Path) -> Callable[[str, str], None]:
    """One JSON object on standard output when the server is ready; everything else on standard error."""
    import sys
    from dataclasses import asdict

    from services.cli.home import HomeFolder

    def say(source: str, line: str) -> None:
        runtime = HomeFolder(home).runtime()
        if source == "ready" and runtime is not None:
            print(json.dumps(asdict(runtime)), flush=True)
        else:
            print(f"{source}: {line}", file=sys.stderr, flush=True)

    return say


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running afterwards, until Ctrl-C.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Use the server that runs, with its own model.")] = False,
    as_json: AsJson = False,
) -> None:
    """Solve the bundled sample issue from end to end, with the scripted model on a server of its own."""
    from services.cli import demo as showing

    raise typer.Exit(showing.demo(keep=keep, running=running, as_json=as_json))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Tell what is missing and how to get it."""
    from dataclasses import asdict

    from services.cli.doctor import examine

    found = examine(settings())

    def words() -> None:
        console, width = out(), min(max(len(check.name) for check in found), 28)
        for check in found:
            mark, style = ("ok", "green") if check.ok else ("missing", "red") if check.needed else ("–", "dim")
            console.print(f"{mark:>8}  {check.name:<{width}}  {check.detail}", style=style, soft_wrap=True)
            for line in check.fix.splitlines():
                console.print(f"{'':>10}{line}", soft_wrap=True)

    show([asdict(check) for check in found], as_json, words)
    if any(check.needed and not check.ok for check in found):
        raise typer.Exit(1)


@app.command()
def token(as_json: AsJson = False) -> None:
    """Print the bearer token of the HTTP API."""
    from services.cli.client import address

    where = address(settings())
    if where.token is None:
        raise CliError("There is no token yet.", "It is made on first start: agent-coder up")
    show({"token": where.token, "url": where.url}, as_json, lambda: print(where.token))


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    show({"version": VERSION}, as_json, lambda: print(f"agent-coder {VERSION}"))


VERSION = "0.1.0"

for _name, _command in (
    ("chat", chat_commands.chat),
    ("solve", run_commands.solve),
    ("runs", run_commands.runs),
    ("show", run_commands.show_run),
    ("watch", run_commands.watch),
    ("diff", run_commands.diff),
    ("fetch", run_commands.fetch),
    ("cancel", run_commands.cancel),
    ("approve", run_commands.approve),
    ("deny", run_commands.deny),
    ("retry", run_commands.retry),
    ("trace", run_commands.trace),
):
    app.command(_name)(_command)
app.add_typer(dead_commands.app, name="dead")
