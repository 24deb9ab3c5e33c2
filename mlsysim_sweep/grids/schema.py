"""JSON Schema of a spec, made from the vocabulary, so that editors complete and check it."""

from __future__ import annotations

from typing import Any

from mlsysim_sweep.catalog import FACTS, bundled_table, choice_rows
from mlsysim_sweep.grids.spec import DEVICE_RULES, MEMORY_RULES
from mlsysim_sweep.kernels import MODELS, model
from mlsysim_sweep.vocabulary import CHOICES, PRECISIONS, VOCABULARY, Input, Kind

_TABLES = ("accelerator", "workload", "link")


def json_schema() -> dict[str, Any]:
    """The schema of a spec file, draft 2020-12.

    >>> sorted(json_schema()["properties"])[:4]
    ['accelerator', 'axes', 'feasible', 'inputs']
    """
    values = {name: _value(entry) for name, entry in VOCABULARY.items()}
    axes = {name: _axis(VOCABULARY[name], value) for name, value in values.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mlsysim-sweep spec",
        **_object(
            {
                "sweep": _sweep(),
                "inputs": _object(values),
                "axes": _object(axes),
                "zip": {"type": "array", "items": _object(axes)},
                "feasible": _feasible(),
                "output": _object({"columns": {"anyOf": [{"const": "all"}, _columns()]}}),
                **{
                    table: {"type": "object", "additionalProperties": _row(table)}
                    for table in FACTS
                },
            }
        ),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(entry: Input) -> dict[str, Any]:
    described = {"description": f"{entry.meaning} [{entry.unit}]: {entry.allowed}"}
    if entry.kind is Kind.WHOLE:
        return {**described, "type": "integer", "minimum": int(entry.low)}
    if entry.kind is Kind.REAL:
        return {**described, "type": ["number", "string"]}
    return {**described, "type": "string", "examples": _names(entry.name)}


def _names(choice: str) -> list[str]:
    if choice in _TABLES:
        return list(bundled_table(choice))
    return list(PRECISIONS) if choice == "precision" else list(choice_rows(choice))


def _axis(entry: Input, value: dict[str, Any]) -> dict[str, Any]:
    element = {key: found for key, found in value.items() if key != "description"}
    listed = {"type": "array", "items": element, "minItems": 1}
    if entry.name in CHOICES:
        return {"description": value["description"], **listed}
    number = {"type": ["number", "string"]}
    forms = [_object({"range": _list(number, 2, 3)})]
    forms += [_object({form: _list(number, 3, 3)}) for form in ("linspace", "geomspace")]
    if entry.kind is Kind.WHOLE:
        forms += [_object({"powers_of_two": _list({"type": "integer"}, 2, 2)})]
        forms += [_object({"divisors_of": {"type": "integer", "minimum": 1}})]
    return {"description": value["description"], "anyOf": [listed, *forms]}


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _sweep() -> dict[str, Any]:
    return _object(
        {
            "name": {"type": "string"},
            "model": {"enum": list(MODELS)},
            "catalog": {"type": ["string", "array"], "items": {"type": "string"}},
            "max_points": {"type": "number", "minimum": 1},
        }
    )


def _feasible() -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 1}
    devices = {key: whole for key in DEVICE_RULES if key != "one_of"}
    devices["one_of"] = {"type": "array", "items": whole, "minItems": 1}
    return _object(
        {
            "memory": {"enum": list(MEMORY_RULES)},
            "headroom": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "devices": _object(devices),
            "tp_within_node": {"type": "boolean"},
            "where": {"type": ["string", "array"], "items": {"type": "string"}},
        }
    )


def _columns() -> dict[str, Any]:
    outputs = [name for found in MODELS for name in model(found).outputs]
    names = [*dict.fromkeys(outputs), *VOCABULARY]
    return {"type": "array", "items": {"enum": names}, "uniqueItems": True}


def _row(table: str) -> dict[str, Any]:
    facts: dict[str, Any] = {name: _value(VOCABULARY[name]) for name in FACTS[table]}
    if table == "accelerator":
        facts["peak_flops"] = _object({p: {"type": "string"} for p in PRECISIONS})
    return {"type": "object", "properties": facts}
