"""JSON Schemas of the documents, made from their types: draft 2020-12, no key beyond those that are typed."""

import json
import types
from importlib import resources
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .advice import Advice
from .answer import Answer
from .audit import AuditDocument, LeakDocument
from .explain import Explanation
from .fit import FitDocument
from .inspection import (
    AcceptanceInspection,
    BenchmarkInspection,
    CalibrationInspection,
    DrafterInspection,
    ProfileInspection,
    TraceInspection,
)
from .plan import Plan
from .runs import Runs
from .sweep import SweepSummary

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS: dict[str, tuple[Any, ...]] = {
    "answer": (Answer,),
    "plan": (Plan,),
    "runs": (Runs,),
    "audit": (AuditDocument, LeakDocument),
    "explain": (Explanation,),
    "advice": (Advice,),
    "sweep": (SweepSummary,),
    "fit": (FitDocument,),
    "inspection": (
        ProfileInspection,
        TraceInspection,
        CalibrationInspection,
        AcceptanceInspection,
        BenchmarkInspection,
        DrafterInspection,
    ),
}
_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def json_schema(name: str) -> dict[str, Any]:
    """The schema of a document by its name in DOCUMENTS, from its types."""
    parts: dict[str, Any] = {}
    made = [_schema(kind, parts) for kind in DOCUMENTS[name]]
    top = made[0] if len(made) == 1 else {"oneOf": made}
    return {"$schema": DIALECT, "title": f"specsched {name}", **top, "$defs": dict(sorted(parts.items()))}


def shipped(name: str) -> dict[str, Any]:
    """The schema of a document as it comes with the package."""
    text = (resources.files(__package__) / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Annotated:
        return {**_schema(inside[0], parts), "description": inside[1]}
    if origin in (NotRequired, Required):
        return _schema(inside[0], parts)
    if origin is Literal:
        return {"const": inside[0]} if len(inside) == 1 else {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, parts) for each in inside]}
    if origin is list:
        return {"type": "array", "items": _schema(inside[0], parts)}
    if origin is dict and inside[0] is str:
        return {"type": "object", "additionalProperties": _schema(inside[1], parts)}
    if is_typeddict(kind):
        return _object(kind, parts)
    raise TypeError(f"no JSON Schema is known for {kind!r}; add its case here")


def _object(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in parts:
        parts[kind.__name__] = {}  # taken, should a type name itself
        hints = get_type_hints(kind, include_extras=True)
        parts[kind.__name__] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {key: _schema(hint, parts) for key, hint in hints.items()},
            "required": [key for key in hints if key in kind.__required_keys__],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
