"""What is recorded of a loop, read in the order of its journal.

Invariant: adding an entry to a record gives what a fresh reading of the journal with that entry would give.
"""

from dataclasses import dataclass, field

from libs.contracts.envelope import Message, Usage
from libs.contracts.inference import Completion


class ToolResult(Message):
    """What a call gave to the model. `call_id` is unique in the loop and stays the same when the loop is resumed."""

    call_id: str
    tool: str
    text: str
    ok: bool = True
    seconds: float = 0.0


class Started(Message):
    """A call with effects was about to run."""

    call_id: str
    tool: str


class Interjection(Message):
    """Something that the model is told between two of its replies."""

    text: str
    fresh_allowance: bool = False


Entry = Completion | ToolResult | Started | Interjection


@dataclass
class Record:
    """The entries of one loop. `allowance_from` is the number of replies that a person's "go on" has forgiven."""

    replies: list[Completion] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    interjections: dict[int, list[Interjection]] = field(default_factory=dict)
    allowance_from: int = 0
    seconds_used: float = 0.0

    def add(self, entry: Entry) -> None:
        """Take one more entry."""
        match entry:
            case Completion():
                self.replies.append(entry)
            case ToolResult():
                self.results.setdefault(entry.call_id, entry)
            case Started():
                self.started[entry.call_id] = entry.tool
            case Interjection():
                self.interjections.setdefault(len(self.replies), []).append(entry)
                if entry.fresh_allowance:
                    self.allowance_from = len(self.replies)

    def usage(self) -> Usage:
        """Tokens and money of all recorded replies."""
        return sum((Usage.model_copy(reply.usage, update={"calls": reply.usage.calls or 1}) for reply in self.replies), Usage())
