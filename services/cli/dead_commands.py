"""The commands about dead letters: what could not be handled, why, and once more."""

import base64
from typing import Annotated, Any

import typer

from services.cli.context import AsJson, api, out, show

Json = dict[str, Any]
Sequence = Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The letter's number in the list.")]
app = typer.Typer(no_args_is_help=True, help="What could not be handled: list, show, replay.")


@app.command("list")
def list_letters(
    after: Annotated[int, typer.Option("--after", min=0, help="Only letters behind this number.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    page = api().get("/api/dead", after=after, limit=limit)

    def words() -> None:
        for letter in page["letters"]:
            out().print(f"{letter['sequence']:>5}  {_head(letter)}", soft_wrap=True)
        if not page["letters"]:
            print("no dead letters")
        if page.get("next_after") is not None:
            print(f"more: --after {page['next_after']}")

    show(page, as_json, words)


def _head(letter: Json) -> str:
    from services.cli.words import plain, short

    what = f"{letter['consumer']:<22} {letter['error_kind']:<9} {plain(letter['subject'])}"
    return f"{letter['died_at'][:19]}  {what}  {short(letter['reason'])}"


@app.command("show")
def show_letter(sequence: Sequence, as_json: AsJson = False) -> None:
    """Show one dead letter whole."""
    letter = api().get(f"/api/dead/{sequence}")

    def words() -> None:
        from services.cli.words import plain

        for name in ("sequence", "died_at", "consumer", "error_kind", "stream", "subject", "stream_sequence", "deliveries", "reason"):
            print(f"{name:>16}  {plain(letter[name])}")
        print(plain(base64.b64decode(letter.get("payload", "")).decode("utf-8", "replace")))
        print(f"once more: agent-coder dead replay {sequence}")

    show(letter, as_json, words)


@app.command("replay")
def replay(sequence: Sequence, as_json: AsJson = False) -> None:
    """Handle a dead letter once more, after its reason was removed."""
    done = api().post(f"/api/dead/{sequence}/replay")
    show(done, as_json, lambda: print(f"on its way again: {done['stream']} {done['sequence']}"))
