"""Conversion of enums, times and durations."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from paceline.errors import InvalidArgument

NANOS_PER_SECOND = 1_000_000_000
E = TypeVar("E", bound=StrEnum)
V_co = TypeVar("V_co", bound=int, covariant=True)
V = TypeVar("V", bound=int)


class _ProtoEnum(Protocol[V_co]):
    def Value(self, name: str) -> V_co: ...  # noqa: N802 - protobuf's name


class EnumTable(Generic[E, V]):
    """A domain enum and its proto enum, by name. Building it fails when the proto lacks a value."""

    def __init__(
        self, domain: type[E], proto: _ProtoEnum[V], prefix: str, error: type[InvalidArgument] = InvalidArgument
    ) -> None:
        self._to_proto = {member: proto.Value(f"{prefix}_{member.name}") for member in domain}
        self._to_domain: dict[int, E] = {value: member for member, value in self._to_proto.items()}
        self._unspecified = proto.Value(f"{prefix}_UNSPECIFIED")
        self._error = error

    def to_proto(self, member: E | None) -> V:
        """Return the proto value; UNSPECIFIED for None."""
        return self._unspecified if member is None else self._to_proto[member]

    def to_domain(self, value: int, field: str) -> E:
        """Return the domain value of a request's field; unspecified and unknown values are refused."""
        member = self._to_domain.get(value)
        if member is None:
            known = ", ".join(known.name for known in self._to_proto)
            raise self._error(f"{field}: must be one of {known}", field=field, value=value)
        return member


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Return a time in microseconds; None stays None."""
    if moment is None:
        return None
    result = Timestamp()
    result.FromDatetime(moment)
    return result


def moment(value: Timestamp, field: str) -> datetime:
    """Return the time of a request's field; out of the years 1 to 9999 is refused."""
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{field}: must be a time of the years 1 to 9999", field=field) from None


def duration(seconds: float | None) -> Duration | None:
    """Return a span in nanoseconds; None stays None."""
    if seconds is None:
        return None
    result = Duration()
    result.FromNanoseconds(round(seconds * NANOS_PER_SECOND))
    return result


def whole_seconds(value: Duration, field: str) -> int:
    """Return a span of a request's field; parts of a second are refused."""
    if value.nanos:
        raise InvalidArgument(f"{field}: must be whole seconds", field=field)
    return value.seconds


def seconds(value: Duration) -> float:
    """Return a span in seconds."""
    return value.ToNanoseconds() / NANOS_PER_SECOND
