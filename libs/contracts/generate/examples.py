"""A realistic example of any message, every field filled: by `Class.field`, by field name, else its default, else from its type.

Deterministic; what it makes is checked by the message's own class.
"""

from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from libs.contracts.envelope import Message

MessageT = TypeVar("MessageT", bound=Message)
_SHA = "9f2c1d4e8b7a6053f1e2d3c4b5a697887f6e5d4c"
_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
_PATCH = b"def slugify(title):\n    return transliterate(title).lower()\n"
_DIFF = """--- a/src/slugs.py
+++ b/src/slugs.py
@@ -1,2 +1,2 @@
 def slugify(title):
-    return title.lower()
+    return transliterate(title).lower()
"""

_VALUES: dict[str, Any] = {
    "Issue.id": "1042",
    "Issue.title": "slugify drops Chinese titles (标题变成空)",
    "Issue.body": "slugify('修复 bug') gives 'bug', it should keep every word.",
    "CloudEvent.id": "f3b7c1d2-0001",
    "CloudEvent.source": "tracker.example.org/project/42",
    "CloudEvent.type": "agent-coder.solve-issue",
    "CloudEvent.subject": "1042",
    "CloudEvent.datacontenttype": "application/json",
    "CloudEvent.data": {"issue": {"id": "1042", "title": "slugify drops Chinese titles"}, "repo": "slugs"},
    "CloudEvent.data_base64": None,
    "merge_sha": _TREE,
    "WebhookAnswer.status": 202,
    "WebhookAnswer.detail": "taken",
    "GitHubDelivery.event": "issues",
    "GitHubDelivery.action": "labeled",
    "GitHubDelivery.payload": {},
    "GitHubDelivery.path": "src/slugs.py",
    "RunState.closed": False,
    "ChatMessage.role": "tool",
    "ChatMessage.content": "src/slugs.py",
    "ChatMessage.tool_calls": (),
    "Span.parent_id": "b7ad6b7169203331",
    "Span.kind": "consumer",
    "Span.name": "process run.opened",
    "Span.status": "ok",
    "Span.attributes": {"messaging.system": "nats", "agent_coder.run.id": "run-1042"},
    "ToolDefinition.name": "read",
    "ToolDefinition.description": "Read a file.",
    "ToolCall.id": "call_1",
    "ToolCall.name": "read",
    "ModelDescription.name": "openai/gpt-4o",
    "DirectoryEntry.name": "slugs.py",
    "TimerDue.name": "approval",
    "TreeEntry.mode": "100644",
    "FileWrite.renamed_from": None,
    "ChangedFile.status": "modified",
    "ChangedFile.renamed_from": None,
    "FileContent.mode": 0o644,
    "FileWrite.mode": 0o644,
    "WorkspaceCall.token": 9,
    "RunState.status": "finished",
    "RunState.failed": None,
    "RunState.pending": None,
    "GitHead.status": 200,
    "GitHead.headers": (("content-type", "application/x-git-upload-pack-advertisement"),),
    "ServeGit.headers": {"git-protocol": "version=2"},
    "ServeGit.body": b"",
    "Models.advice": "",
    "Health.advice": "",
    "GitToken.token": "short-lived-token",
    "ServeGit.token": "short-lived-token",
    "StoreBundle.run_id": "run-1042",
    "Complete.max_output_tokens": 8192,
    "ListTree.limit": 20_000,
    "ImportRepository.source": "https://git.example.org/team/slugs.git",
    "RepositoryDescription.source": "https://git.example.org/team/slugs.git",
    "Diff.base": _SHA,
    "Diff.head": "1f0e8b5c6d7a9e2b3c4d5e6f708192a3b4c5d6e7",
    "GrepMatch.text": "    return title.lower()",
    "OutputChunk.data": b"4 passed in 0.12s\n",
    "GitFrame.data": b"001e# service=git-upload-pack\n",
    "ListRuns.text": "slugify",
    "PlanStep.detail": "Transliterate before lower-casing.",
    "Policy.max_tokens": 2_000_000,
    "RunFailed.reason": "gave up after 3 tries: the upstream is down",
    "RunCancelled.reason": "no longer needed",
    "RunRejected.verdict": {
        "ok": False,
        "outcome": "failed",
        "reasons": ["tests/test_slugs.py::test_ascii passed before and fails"],
        "newly_failing": ["tests/test_slugs.py::test_ascii"],
        "feedback": "tests/test_slugs.py::test_ascii: AssertionError: '' == 'a-title'",
    },
    "CommandRun.phase": "test",
    "Refused.retryable": False,
    "Progress.text": "4 passed in 0.12s",
    "Progress.kind": "output",
    "RunPublished.number": 7,
    "SetUpResult.ran": True,
    "TextDelta.text": "I read the file first.",
    "Models.models": ({"name": "openai/gpt-4o"},),
    "RunState.rejections": (),
    "RunState.approvals": (),
    "account": "run-1042",
    "arguments": '{"path": "src/slugs.py"}',
    "attempt": 1,
    "backend": "process",
    "base": "main",
    "base_branch": "main",
    "base_commit": _SHA,
    "branch": "fix/issue-1042",
    "branches": ("fix/issue-1042", "main"),
    "by": "owner",
    "call_id": "call_1",
    "ceiling_usd": 5.0,
    "code": "not_found",
    "command": "python -m pytest -q",
    "comment": "Looks right.",
    "commit": _SHA,
    "consumer": "planner-plan",
    "content": "I read the file first.",
    "cost_usd": 0.0042,
    "cursor": "eyJhZnRlciI6IDQyfQ",
    "day": "2025-11-29",
    "default_branch": "main",
    "detail": "There is no file src/slug.py; did you mean src/slugs.py?",
    "diff": _DIFF,
    "duration_seconds": 1.25,
    "error": "the upstream is down",
    "exit_code": 0,
    "expected_sha256": _DIGEST,
    "failed": 0,
    "feedback": "1 test fails: tests/test_slugs.py::test_chinese",
    "files": ("src/slugs.py",),
    "finish_reason": "stop",
    "first_day": "2025-11-01",
    "generation": "g1",
    "have": (_SHA,),
    "id": "run-1042",
    "input_tokens": 1200,
    "issue_id": "1042",
    "json_schema": {"type": "object", "properties": {"steps": {"type": "array"}}},
    "key": _DIGEST,
    "last_day": "2025-11-30",
    "languages": ("Python",),
    "line": 2,
    "links": ("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",),
    "message": "fix(1042): slugify drops Chinese titles",
    "model": "openai/gpt-4o",
    "name": "slugs",
    "newly_failing": (),
    "newly_passing": ("tests/test_slugs.py::test_chinese",),
    "next_cursor": "eyJhZnRlciI6IDkyfQ",
    "object_id": _TREE,
    "of": 4,
    "operation_id": "run-1042-9-1",
    "output_tail": "4 passed in 0.12s",
    "output_tokens": 300,
    "outcome": "exited",
    "owner": "run-1042",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "passed": 4,
    "path": "src/slugs.py",
    "paths": ("src/slugs.py",),
    "pattern": "**/*.py",
    "payload": b'{"run_id":"run-1042"}',
    "purpose": "edit",
    "query": "service=git-upload-pack",
    "question": "There are no tests. Commit the change anyway?",
    "reason": "gave up after 3 tries: the upstream is down",
    "reasoning": "The function drops every character that is not ASCII.",
    "reasons": ("nothing passes less than before",),
    "repo": "https://git.example.org/team/slugs.git",
    "reporter_email": "reporter@example.org",
    "repository": "slugs",
    "request_digest": _DIGEST,
    "request_id": "run-1042-9-1",
    "requested_by": "owner",
    "result": "1\tdef slugify(title):",
    "run_id": "run-1042",
    "sequence": 12,
    "service": "planner",
    "setup_commands": ("python -m pip install -e .",),
    "setup_key": _DIGEST,
    "sha": _SHA,
    "sha256": _DIGEST,
    "size": 61,
    "span_id": "00f067aa0ba902b7",
    "start_ns": 1_764_417_600_000_000_000,
    "end_ns": 1_764_417_600_250_000_000,
    "stderr": "",
    "stdout": "4 passed in 0.12s\n",
    "step": "edit",
    "stream": "RUN",
    "stream_sequence": 4,
    "subject": "run.run-1042.opened",
    "summary": "Keep every word of a title in its slug.",
    "temperature": 0.2,
    "test_commands": ("python -m pytest -q",),
    "test_summary": "4 passed, 0 failed",
    "text": "return title.lower()",
    "title": "Keep every word",
    "token": 9,
    "tool": "read",
    "tool_call_id": "call_1",
    "topic": "cause",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "tree": _TREE,
    "upload_id": "upload-1",
    "url": "https://github.com/example/slugs/pull/7",
    "webhook": "0123456789abcdef",
    "why": "Titles in Chinese became empty.",
    "worker": "host-1-4711",
    "workspace_id": "run-1042-1",
}


def example(message: type[MessageT]) -> MessageT:
    """A filled message.

    Raises:
        pydantic.ValidationError: no fitting value was found for a field; add one to the table.
    """
    return message.model_validate({name: _field(message, name) for name in message.model_fields})


def _field(message: type[Message], name: str) -> Any:
    field = message.model_fields[name]
    for owner in message.__mro__:
        if f"{owner.__name__}.{name}" in _VALUES:
            return _VALUES[f"{owner.__name__}.{name}"]
    if name in _VALUES and _fits(_VALUES[name], field.annotation):
        return _VALUES[name]
    if isinstance(field.default, int | float | str) and field.default:
        return field.default
    return _sample(field.annotation, name)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value of the table is meant for a field of this type: names repeat over the messages."""
    options = [o for o in _options(annotation) if o is not type(None)]
    if value is None:
        return True
    return any(_is(value, o) for o in options)


def _is(value: Any, annotation: Any) -> bool:
    origin = get_origin(annotation)
    if annotation is Any:
        return True
    if origin is Literal:
        return value in get_args(annotation)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, get_args(annotation)[0]) for v in value)
    kind = origin or annotation
    return isinstance(kind, type) and type(value) is kind


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(o for a in get_args(annotation) for o in _options(a))
    return (annotation,)


def _sample(annotation: Any, name: str) -> Any:
    kind = next(o for o in _options(annotation) if o is not type(None))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(_sample(a, name) for a in arguments if a is not ...)
    if isinstance(kind, type) and issubclass(kind, Message):
        return example(kind)
    plain = {bool: True, int: 1, float: 1.0, str: name, bytes: _PATCH, datetime: datetime(2025, 11, 29, 12, 0, tzinfo=UTC)}
    return plain.get(kind, {})
