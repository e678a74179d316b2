"""The agent loop: model, tools, limits and the transcript that makes it resumable."""

from libs.agent.dialect import Dialect, NativeCalls
from libs.agent.gate import Gate, Given, Paused, Waits
from libs.agent.journal_transcript import JournalTranscript
from libs.agent.limits import CallLimit, LimitReached, Limits, ModelStuck, Stopped
from libs.agent.loop import LoopResult, run_loop
from libs.agent.model import AskedModel, Model
from libs.agent.record import Interjection, Record, Started, ToolResult
from libs.agent.requests import said_since
from libs.agent.tools import AnyArguments, Arguments, DeclaredTool, MalformedCall, Tool, ToolFailed, Tools
from libs.agent.transcript import MemoryTranscript, Transcript
from libs.agent.untrusted import RULE, strip_boundaries, wrap
from libs.contracts.envelope import Ask

__all__ = [
    "RULE",
    "AnyArguments",
    "Arguments",
    "Ask",
    "AskedModel",
    "CallLimit",
    "DeclaredTool",
    "Dialect",
    "Gate",
    "Given",
    "Interjection",
    "JournalTranscript",
    "LimitReached",
    "Limits",
    "LoopResult",
    "MalformedCall",
    "MemoryTranscript",
    "Model",
    "ModelStuck",
    "NativeCalls",
    "Paused",
    "Record",
    "Started",
    "Stopped",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "Tools",
    "Transcript",
    "Waits",
    "run_loop",
    "said_since",
    "strip_boundaries",
    "wrap",
]
