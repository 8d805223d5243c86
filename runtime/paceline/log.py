"""Logging, configured once per process: one line per event on standard error, JSON or pretty.

Code logs through `structlog.get_logger()`. Records of libraries take the same way from warning on.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import structlog
from structlog.processors import ExceptionRenderer, JSONRenderer, TimeStamper, add_log_level
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from paceline.config import Log

CONTENT_KEYS = frozenset(
    {
        *("arguments", "content", "messages", "output", "prompt", "reasoning", "system", "text"),
        *("generated", "generated_ids", "prompt_ids", "prompt_json", "rendered", "rendered_ids", "token_ids"),
    }
)
"""Keys that can hold prompts or answers, as text or as token ids; withheld unless `log.content` is set."""
SECRET_KEYS = frozenset({"api_key", "authorization", "cache_salt", "password"})
"""Keys that are withheld always."""
WITHHELD = "[withheld]"
_HANDLER = "paceline"


def configure(settings: Log) -> None:
    """Set up logging for this process; a later call replaces the set-up."""
    pretty = settings.format == "pretty" or (settings.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_log_level,
        TimeStamper(fmt="iso", utc=True, key="time"),
        _Withhold(SECRET_KEYS if settings.content else SECRET_KEYS | CONTENT_KEYS),
    ]
    # Local variables stay out of tracebacks in both forms: they hold prompts and keys.
    frames = ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
    )
    last: list[Processor] = [console] if pretty else [frames, JSONRenderer(serializer=_dumps)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    _route_libraries(shared, last, max(level, logging.WARNING))


class _Withhold:
    """A processor that replaces the values of some keys, in nested dicts and lists, too."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._clean(key, value) for key, value in event.items()}

    def _clean(self, key: object, value: Any) -> Any:
        if key in self._keys:
            return WITHHELD
        if isinstance(value, dict):
            return {inner: self._clean(inner, item) for inner, item in value.items()}
        return [self._clean(None, item) for item in value] if isinstance(value, list) else value


def _dumps(event: object, **options: Any) -> str:
    return orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS, **options).decode()


def _route_libraries(shared: list[Processor], last: list[Processor], level: int) -> None:
    before: list[Processor] = [structlog.stdlib.add_logger_name, *shared]
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=before, processors=[ProcessorFormatter.remove_processors_meta, *last])
    )
    root = logging.getLogger()
    root.handlers = [*(old for old in root.handlers if old.name != _HANDLER), handler]
    root.setLevel(level)
