"""`proto/` is what the code says, and a change that breaks a published message is named."""

import functools
import json
import shutil
from typing import Literal

import jsonschema
import pytest
from pydantic import Field

from deploy.generate import PROTO
from deploy.generate import extra as described
from libs.contracts.envelope import Message
from libs.contracts.generate.catalogue import catalogue
from libs.contracts.generate.compatibility import faults, fields
from libs.contracts.generate.files import check, write

extra = functools.cache(described)
"""To describe the gateway takes seconds."""
GOLDENS = sorted(PROTO.glob("golden/*.json"))


@pytest.fixture
def copy(tmp_path):
    root = shutil.copytree(PROTO, tmp_path / "proto")
    assert write(root, extra()) == []
    return root


def edit(path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_what_is_checked_in_is_what_the_code_says():
    assert check(PROTO, extra()) == []


def test_writing_again_changes_nothing(copy):
    before = {p: p.read_bytes() for p in copy.rglob("*.json")}
    assert write(copy, extra()) == []
    assert {p: p.read_bytes() for p in copy.rglob("*.json")} == before


def test_a_golden_is_never_rewritten(copy):
    golden = copy / "golden" / "run.opened.v1.json"
    golden.write_text("{}")
    write(copy, extra())
    assert golden.read_text() == "{}"


def test_a_missing_golden_is_named(copy):
    (copy / "golden" / "run.opened.v1.json").unlink()
    assert check(copy, extra()) == ["golden/run.opened.v1.json is missing: it was published"]


def test_a_schema_file_changed_by_hand_is_named(copy):
    edit(copy / "schemas" / "run.opened.v1.json", lambda d: d["properties"].pop("repo"))
    assert check(copy, extra()) == ["schemas/run.opened.v1.json is not what the code says: run `make proto`"]


def test_a_file_of_no_message_is_named(copy):
    (copy / "schemas" / "run.guessed.v1.json").write_text("{}")
    assert check(copy, extra()) == ["schemas/run.guessed.v1.json belongs to no published message"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda f: f.update({".colour": {"type": "string", "required": False}}), "field colour was removed"),
        (lambda f: f[".base"].update({"type": "integer"}), "field base was integer and became null or string"),
        (lambda f: f.pop(".repo"), "field repo is new and required: give it a default"),
        (lambda f: f[".issue.body"].update({"required": True}), "field issue.body became optional, older readers need it"),
        (lambda f: f[".repo"].update({"required": False}), "field repo became required"),
        (lambda f: f[".origin"]["enum"].append("fax"), "field origin lost the values fax"),
        (lambda f: f[".repo"].update({"maxLength": 9999}), "field repo was narrowed: maxLength 9999 became 4096"),
        (lambda f: f[".policy.max_attempts"].pop("minimum"), "field policy.max_attempts was narrowed: minimum none became 1"),
    ],
)
def test_a_break_with_what_was_published_is_named_and_nothing_is_written(copy, change, fault):
    edit(copy / "published.json", lambda d: change(d["run.opened.v1"]))
    before = {p: p.read_bytes() for p in copy.rglob("*.json")}
    wanted = f"run.opened.v1: {fault}"
    assert wanted in check(copy, extra())
    assert wanted in write(copy, extra())
    assert {p: p.read_bytes() for p in copy.rglob("*.json")} == before


def test_a_removed_message_is_named(copy):
    without = {name: m for name, m in catalogue().items() if name != "run.committed.v1"}
    assert write(copy, extra(), without) == ["run.committed.v1: the message was removed"]


def test_a_later_version_beside_the_old_one_is_no_break(copy):
    opened = catalogue()["run.opened.v1"]
    later = {name.replace("run.opened.v1", "run.opened.v2"): m for name, m in catalogue().items()}
    assert later["run.opened.v2"] is opened
    assert write(copy, extra(), later) == []
    assert {"run.opened.v1", "run.opened.v2"} <= set(json.loads((copy / "published.json").read_text()))


class Before(Message):
    size: int = Field(ge=0, le=10)
    kind: Literal["a", "b"] = "a"


class After(Message):
    size: int = Field(ge=-1, le=20)
    kind: Literal["a", "b", "c"] = "a"
    note: str | None = None


def test_optional_fields_values_and_room_may_be_added_but_not_taken_back():
    old, new = fields(Before.model_json_schema()), fields(After.model_json_schema())
    assert faults(old, new) == []
    assert len(faults(new, old)) == 4


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda p: p.stem)
def test_a_golden_fits_its_schema_parses_and_comes_back_the_same(golden):
    name, _, _ = golden.stem.rpartition(".v")
    said = json.loads(golden.read_text())
    jsonschema.Draft202012Validator(json.loads((PROTO / "schemas" / golden.name).read_text())).validate(said)
    newest = max((n for n in catalogue() if n.rpartition(".v")[0] == name), key=lambda n: int(n.rpartition(".v")[2]))
    parsed = catalogue()[newest].model_validate_json(golden.read_bytes())
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == said


def references(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


@pytest.mark.parametrize("name", ["asyncapi.json", "openapi.json"])
def test_every_reference_of_a_document_leads_somewhere(name):
    document = json.loads((PROTO / name).read_text())
    for reference in references(document):
        if not reference.startswith("#/"):
            assert (PROTO / reference).is_file(), reference
            continue
        node = document
        for part in reference[2:].split("/"):
            node = node[part.replace("~1", "/").replace("~0", "~")]
