"""The configuration: one TOML file plus `PACELINE_*` variables, strictly validated. The only reader of both.

A variable names its field by double underscores: `PACELINE_SERVER__LISTEN=127.0.0.1:7450`.
"""

from __future__ import annotations

import os
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import ConfigError

RESERVED_VARIABLES = {"PACELINE_CONFIG", "PACELINE_DATA"}
NANOS = 1_000_000_000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Server(_Section):
    """The gRPC server."""

    listen: str = "127.0.0.1:7450"
    """Address of the gRPC server, HOST:PORT. Port 0 takes a free one."""
    metrics_listen: str = "127.0.0.1:9464"
    """Address of Prometheus metrics over HTTP, HOST:PORT; empty switches them off."""
    tls_certificate: Path | None = None
    """PEM file with the server's certificate chain. Needed for any address but loopback."""
    tls_key: Path | None = None
    """PEM file with the private key of the certificate."""
    require_keys: bool = False
    """Ask for an API key on loopback, too. Any other address always asks."""
    insecure_listen: bool = False
    """Allow an address that is not loopback without TLS and API keys. Logged at each start."""
    max_message_mib: Annotated[int, Field(ge=1, le=512)] = 32
    """Largest gRPC message, in MiB."""
    shutdown_grace_seconds: Annotated[float, Field(ge=0)] = 10.0
    """How long running steps may go on after a stop signal, in seconds."""
    reflection: bool = True
    """Serve gRPC reflection."""


class Ledger(_Section):
    """The database."""

    url: str = ""
    """SQLAlchemy URL: `sqlite:///PATH` or `postgresql+psycopg://...`. Empty: SQLite in the data folder."""
    lease_seconds: Annotated[float, Field(ge=2)] = 15.0
    """How long a runtime is believed alive after its last sign, in seconds."""
    write_timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long a write may wait for the database before the step is refused, in seconds."""
    idle_close_hours: Annotated[float, Field(gt=0)] = 24.0
    """Workflows without a step for so long are closed with outcome unknown, in hours."""


class Log(_Section):
    """Logging."""

    format: Literal["auto", "json", "pretty"] = "auto"
    """`auto`: pretty on a terminal, JSON elsewhere."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    content: bool = False
    """Write prompts and answers into the log."""


class Limits(_Section):
    """Limits of the step queue and of memory."""

    max_queued_steps: Annotated[int, Field(ge=0)] = 1024
    """Most steps that may wait for a place on a replica."""
    transcript_cache_mib: Annotated[int, Field(ge=1)] = 256
    """Memory for transcripts of live workflows, in MiB; older ones are read from the database again."""
    stall_seconds: Annotated[float, Field(gt=0)] = 300.0
    """A replica that sends nothing for so long while it runs a step is given up, in seconds."""


class Model(_Section):
    """One model that clients can name."""

    path: str
    """Folder or hub id whose tokenizer and chat template are read. `emulated` is built in, needs no files."""
    template: Path | None = None
    """Chat template file that replaces the model's own."""
    sampling_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Default temperature of this model's steps."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Default limit of output tokens of this model's steps. Empty: the rest of the context."""


class Speculation(_Section):
    """How an engine drafts tokens."""

    method: Literal["none", "ngram", "draft_model"] = "none"
    """Speculation method of vLLM."""
    draft_model: str = ""
    """Folder or hub id of the draft model, for `draft_model`."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] = 6
    """Tokens drafted per verification (K)."""
    prompt_lookup_min: Annotated[int, Field(ge=1)] = 2
    """Shortest match that ngram drafts from, in tokens."""
    prompt_lookup_max: Annotated[int, Field(ge=1)] = 5
    """Longest match that ngram looks for, in tokens."""


class Engine(_Section):
    """One replica: a server that somebody runs (`url`), or one that Paceline starts (`platform`)."""

    model: str
    """Name of the model in `[models]` that this replica serves."""
    url: str = ""
    """Base URL of a running server, such as http://127.0.0.1:8000."""
    api_key: str = Field(default="", repr=False)
    """Bearer key that the server asks for."""
    served_model_name: str = ""
    """Name under which the server knows the model. Empty: the only one that it serves."""
    platform: Literal["", "cpu", "cuda", "neuron", "emulated"] = ""
    """Platform of a server that Paceline starts."""
    python: str = ""
    """Python of the engine's venv. Empty: the venv that `paceline engine install` makes."""
    max_concurrent_steps: Annotated[int, Field(ge=1)] = 4
    """Most steps at once on this replica (vLLM's max_num_seqs)."""
    max_model_len: Annotated[int, Field(ge=64)] | None = None
    """Longest context in tokens. Empty: the model's own."""
    block_size: Annotated[int, Field(ge=8)] | None = None
    """KV-cache block in tokens. Empty: the platform's default."""
    dtype: str = ""
    """Number format. Empty: chosen for the platform."""
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    """KV-cache memory in GiB. Empty: the platform's default."""
    speculation: str = ""
    """Name of a profile in `[speculation]`. Empty: none."""
    extra_args: list[str] = Field(default_factory=list)
    """Arguments added to the server's command line as they are."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables added to the server's."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 900.0
    """How long starting and loading may take, in seconds."""
    instance_type: str = ""
    """Key in `[accelerators]` for the hourly price. Empty: no infrastructure cost."""
    emulator_script: Path | None = None
    """Scripted replies of an emulated engine."""

    @model_validator(mode="after")
    def _one_kind(self) -> Engine:
        if bool(self.url) == bool(self.platform):
            raise ValueError("set exactly one of `url` (a running server) and `platform` (a server to start)")
        return self


class Price(_Section):
    """List prices of one model, in USD per million tokens."""

    input: Decimal
    """Prompt tokens that are computed."""
    output: Decimal
    """Generated tokens."""
    cached_input: Decimal | None = None
    """Prompt tokens found in the cache. Empty: the price of `input`."""
    example: bool = False
    """These are example prices; everything that shows them says so."""


class Accelerator(_Section):
    """Price of one instance type."""

    usd_per_hour: Decimal
    """USD per hour for the share that one replica uses."""
    example: bool = False
    """This is an example price."""


class Settings(_Section):
    """Everything."""

    server: Server = Field(default_factory=Server)
    ledger: Ledger = Field(default_factory=Ledger)
    log: Log = Field(default_factory=Log)
    limits: Limits = Field(default_factory=Limits)
    models: dict[str, Model] = Field(default_factory=dict)
    engines: dict[str, Engine] = Field(default_factory=dict)
    speculation: dict[str, Speculation] = Field(default_factory=dict)
    prices: dict[str, Price] = Field(default_factory=dict)
    accelerators: dict[str, Accelerator] = Field(default_factory=dict)
    allow_unpriced: bool = False
    """Start although a model has no list price; its list cost is then not reported."""

    @model_validator(mode="after")
    def _references(self) -> Settings:
        for name, engine in self.engines.items():
            if engine.model not in self.models:
                raise ValueError(f"engines.{name}.model: no [models.{engine.model}]; known: {_names(self.models)}")
            if engine.speculation and engine.speculation not in self.speculation:
                raise ValueError(f"engines.{name}.speculation: no [speculation.{engine.speculation}]")
            if engine.instance_type and engine.instance_type not in self.accelerators:
                raise ValueError(f"engines.{name}.instance_type: no [accelerators.{engine.instance_type}]")
        return self

    @property
    def ledger_url(self) -> str:
        """The database URL, with the default filled in."""
        return self.ledger.url or f"sqlite:///{data_dir() / 'ledger.db'}"


def data_dir() -> Path:
    """Folder of the embedded database and of engine logs."""
    return Path(platformdirs.user_data_dir("paceline", appauthor=False))


def cache_dir() -> Path:
    """Folder of model files and engine venvs."""
    return Path(platformdirs.user_cache_dir("paceline", appauthor=False))


def load(path: Path | None = None) -> Settings:
    """Read the file (`path`, else `$PACELINE_CONFIG`, else ./paceline.toml where there is one) and the variables.

    Raises `ConfigError` with one line per bad field.
    """
    if path is None and (named := os.environ.get("PACELINE_CONFIG")):
        path = Path(named)
    if path is None and Path("paceline.toml").exists():
        path = Path("paceline.toml")
    values = _read(path) if path else {}
    _merge_environment(values)
    return parse(values, str(path or "environment"))


def parse(values: dict[str, Any], origin: str) -> Settings:
    """Validate a tree of values; `origin` names it in errors."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or 'file'}: {item['msg']}" for item in error.errors()
        ]
        raise ConfigError(f"{origin}: " + "; ".join(lines), origin=origin) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(), parse_float=Decimal)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the file by --config", origin=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", origin=path) from None


def _merge_environment(values: dict[str, Any]) -> None:
    for name, value in os.environ.items():
        if not name.startswith("PACELINE_") or name in RESERVED_VARIABLES:
            continue
        *parents, leaf = name.removeprefix("PACELINE_").lower().split("__")
        node = values
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{name}: {part} is no section", origin=name)
        node[leaf] = value


def _names(known: dict[str, Any]) -> str:
    return ", ".join(sorted(known)) or "none"
