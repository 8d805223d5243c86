"""Settings as TOML: a commented file to start from, and the settings in force with secrets masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.config import Settings

MASK = "********"
_PASSWORD_IN_URL = re.compile(r"(://[^:/@]*):[^@/]*@")


def commented(settings: Settings) -> str:
    """Every setting with its meaning; those that were not set stay commented out with their default."""
    blocks = [_commented_fields(settings)]
    for header, section in _sections(settings):
        blocks.append([f"# {_summary(section)}", f"[{header}]", *_commented_fields(section)])
    return "\n".join(line for block in blocks for line in ["", *block]) + "\n"


def effective(settings: Settings) -> str:
    """Every setting that has a value, defaults included, secrets masked."""
    blocks = [_masked_fields(settings)]
    blocks += [[f"[{header}]", *_masked_fields(section)] for header, section in _sections(settings)]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def given(settings: Settings) -> str:
    """The settings that were set, secrets included."""
    blocks = [_given_fields(settings)]
    blocks += [
        [f"[{header}]", *fields] for header, section in _sections(settings) if (fields := _given_fields(section))
    ]
    return "".join("\n" + "".join(f"{line}\n" for line in block) for block in blocks if block)


def toml_value(value: Any) -> str:
    """One value in TOML; empty for None, which TOML cannot say."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {toml_value(item)}' for key, item in value.items())}}}"
        case int() | float() | Decimal():
            return str(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _given_fields(section: BaseModel) -> list[str]:
    own = _own_fields(section)
    return [f"{name} = {toml_value(value)}" for name, _, value in own if name in section.model_fields_set]


def _sections(settings: Settings) -> Iterator[tuple[str, BaseModel]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield name, value
        elif isinstance(value, dict):
            for key, section in value.items():
                yield f"{name}.{_key(key)}", section
                yield from _inner_sections(f"{name}.{_key(key)}", section)


def _inner_sections(header: str, section: BaseModel) -> Iterator[tuple[str, BaseModel]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield f"{header}.{name}", value


def _own_fields(section: BaseModel) -> Iterator[tuple[str, FieldInfo, Any]]:
    """The fields of a section that are values, not sections."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        tables = isinstance(section, Settings) and isinstance(value, dict)
        if not (tables or isinstance(value, BaseModel) or _names_a_section(field)):
            yield name, field, value


def _names_a_section(field: FieldInfo) -> bool:
    """Whether the field is a section that may be left out."""
    kinds = get_args(field.annotation)
    return NoneType in kinds and any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds)


def _commented_fields(section: BaseModel) -> list[str]:
    lines = []
    for name, field, value in _own_fields(section):
        assignment = f"{name} = {toml_value(value)}".rstrip()
        lines.append(f"# {_one_line(field.description)}")
        lines.append(assignment if name in section.model_fields_set else f"#{assignment}")
    return lines


def _masked_fields(section: BaseModel) -> list[str]:
    return [
        f"{name} = {toml_value(_masked(value, secret=not field.repr))}"
        for name, field, value in _own_fields(section)
        if value is not None
    ]


def _masked(value: Any, *, secret: bool) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, secret=secret) for key, item in value.items()}
    if isinstance(value, str) and value:
        return MASK if secret else _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", value)
    return value


def _summary(section: BaseModel) -> str:
    return _one_line(type(section).__doc__).removesuffix(".")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
