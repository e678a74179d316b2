"""Whether a schema is still what was published: readers and writers of both ages must understand each other.

Within a version optional fields and enum values may be added and limits widened; everything else breaks somebody.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
Fields = dict[str, dict[str, Any]]
"""By path (`.plan.steps[].title`): `type`, `required`, and `enum` and limits where there are any."""

_AT_LEAST = ("minLength", "minItems", "minimum", "exclusiveMinimum")
_AT_MOST = ("maxLength", "maxItems", "maximum", "exclusiveMaximum")


def fields(schema: Schema) -> Fields:
    """A JSON Schema as a flat table of its fields, sorted by path."""
    return dict(sorted(_walk(schema, schema.get("$defs", {}), "", ())))


def _walk(schema: Schema, definitions: dict[str, Schema], path: str, seen: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for option in _options(schema, definitions):
        name = option.get("title", "")
        if "properties" in option and name in seen:
            continue
        inner = (*seen, name) if "properties" in option else seen
        for child, required, node in _children(option):
            yield path + child, {**_describe(node, definitions), "required": required}
            yield from _walk(node, definitions, path + child, inner)


def _children(schema: Schema) -> Iterator[tuple[str, bool, Schema]]:
    required = schema.get("required", ())
    for name, node in schema.get("properties", {}).items():
        yield f".{name}", name in required, node
    for index, node in enumerate(schema.get("prefixItems", ())):
        yield f"[{index}]", False, node
    if isinstance(schema.get("items"), dict):
        yield "[]", False, schema["items"]
    if isinstance(schema.get("additionalProperties"), dict):
        yield "{}", False, schema["additionalProperties"]


def _options(schema: Schema, definitions: dict[str, Schema]) -> list[Schema]:
    if "$ref" in schema:
        return _options(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return [found for option in schema["anyOf"] for found in _options(option, definitions)]
    return [schema]


def _describe(schema: Schema, definitions: dict[str, Schema]) -> dict[str, Any]:
    options = _options(schema, definitions)
    described: dict[str, Any] = {"type": " or ".join(sorted({_type(o) for o in options}))}
    for option in options:
        values = [option["const"]] if "const" in option else option.get("enum")
        limits = {k: option[k] for k in (*_AT_LEAST, *_AT_MOST, "pattern") if k in option}
        described |= limits | ({"enum": values} if values else {})
    return described


def _type(schema: Schema) -> str:
    kind = str(schema.get("type", "any"))
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def faults(published: Fields, current: Fields) -> list[str]:
    """What breaks when a message of the fields `published` becomes one of the fields `current`; empty when nothing does."""
    found = []
    for path, old in published.items():
        new = current.get(path)
        if new is None:
            if _parent(path) in current or not _parent(path):
                found.append(f"field {path[1:]} was removed")
        else:
            found.extend(f"field {path[1:]} {fault}" for fault in _field_faults(old, new))
    for path, new in current.items():
        if path not in published and new["required"] and (_parent(path) in published or not _parent(path)):
            found.append(f"field {path[1:]} is new and required: give it a default")
    return found


def _parent(path: str) -> str:
    return path[: max(path.rfind("."), path.rfind("["), path.rfind("{"))]


def _field_faults(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    if old["type"] != new["type"]:
        yield f"was {old['type']} and became {new['type']}"
    if old["required"] != new["required"]:
        yield "became required" if new["required"] else "became optional, older readers need it"
    missing = [v for v in old.get("enum", ()) if v not in new["enum"]] if "enum" in new else []
    if missing:
        yield f"lost the values {', '.join(map(str, missing))}"
    if "enum" in new and "enum" not in old:
        yield f"was narrowed to the values {', '.join(map(str, new['enum']))}"
    for limit in (*_AT_LEAST, *_AT_MOST, "pattern"):
        if limit in new and _narrower(limit, old.get(limit), new[limit]):
            yield f"was narrowed: {limit} {old.get(limit, 'none')} became {new[limit]}"


def _narrower(limit: str, old: Any, new: Any) -> bool:
    if old is None:
        return True
    if limit == "pattern":
        return bool(old != new)
    return bool(new > old) if limit in _AT_LEAST else bool(new < old)
