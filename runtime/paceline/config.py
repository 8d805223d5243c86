"""The configuration: one TOML file plus `PACELINE_*` variables, strictly validated. The only reader of both.

A variable names its field by double underscores, in capitals: `PACELINE_SERVER__LISTEN=127.0.0.1:7450`. Lists and
tables are JSON text: `PACELINE_ENGINES__CPU__EXTRA_ARGS='["--seed", "1"]'`. A variable wins over the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from paceline import config_references, config_sources
from paceline.config_neuron import Neuron
from paceline.config_types import Items, Section, Table
from paceline.errors import ConfigError

NANOS = 1_000_000_000
MAX_PORT = 65_535


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal() and int(port) <= MAX_PORT):
        raise ValueError(f"must be HOST:PORT, not {value!r}")
    return value


class Server(Section):
    """The gRPC server."""

    listen: str = "127.0.0.1:7450"
    """Address of the gRPC server, HOST:PORT. Port 0 takes a free one."""
    metrics_listen: Annotated[str, AfterValidator(_address)] = "127.0.0.1:9464"
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


class Ledger(Section):
    """The database."""

    url: str = ""
    """SQLAlchemy URL: `sqlite:///PATH` or `postgresql+psycopg://...`. Empty: SQLite in the data folder."""
    lease_seconds: Annotated[float, Field(ge=2)] = 15.0
    """How long a runtime is believed alive after its last sign, in seconds."""
    write_timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    """How long a write may wait for the database before the step is refused, in seconds."""
    idle_close_hours: Annotated[float, Field(gt=0)] = 24.0
    """Workflows without a step for so long are closed with outcome unknown, in hours."""


class Retention(Section):
    """How long texts and token ids are kept. Counts, hashes and costs are never deleted."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Hours after the last change of a workflow. Empty: for ever. A workflow's own `retention` comes first."""
    tenants: Table[Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The same for single tenants, by name: `tenants = { team-a = 24 }`."""


class Log(Section):
    """Logging."""

    format: Literal["auto", "json", "pretty"] = "auto"
    """`auto`: pretty on a terminal, JSON elsewhere."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    content: bool = False
    """Write prompts and answers into the log."""


class Limits(Section):
    """Limits of the step queue and of memory."""

    max_queued_steps: Annotated[int, Field(ge=0)] = 1024
    """Most steps that may wait for a place on a replica."""
    transcript_cache_mib: Annotated[int, Field(ge=1)] = 256
    """Memory for transcripts of live workflows, in MiB; older ones are read from the database again."""
    stall_seconds: Annotated[float, Field(gt=0)] = 300.0
    """A replica that sends nothing for so long while it runs a step is given up, in seconds."""


class Model(Section):
    """One model that clients can name."""

    path: str
    """Folder, hub id or name in `paceline models list`: its tokenizer and chat template are read. `emulated` is
    built in and needs no files."""
    template: Path | None = None
    """Chat template file that replaces the model's own."""
    template_arguments: Table[bool | int | float | str] = Field(default_factory=dict)
    """Variables for the chat template, such as `enable_thinking = false` for Qwen3 or `reasoning_effort = "high"`
    for gpt-oss. Every step of the model has them."""
    sampling_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Default temperature of this model's steps."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Default limit of output tokens of this model's steps. Empty: the rest of the context."""


SpeculationMethod = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "dflash"]
FIELDS_OF_METHODS: dict[str, tuple[SpeculationMethod, ...]] = {
    "drafter": ("draft_model", "eagle3", "mtp", "dflash"),
    "use_heterogeneous_vocab": ("draft_model",),
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
}
"""Settings of `[speculation.NAME]` that only some methods have."""
LOOKUP_MIN, LOOKUP_MAX = 2, 5


NEURON_RULES = ("neuron", "emulated")
"""Platforms that may have a section `neuron`."""


class Speculation(Section):
    """How an engine drafts tokens. Settings that the method does not have are refused."""

    method: SpeculationMethod = "none"
    """Speculation method of vLLM."""
    drafter: str = ""
    """Folder, hub id or name in `paceline models list` of what drafts: a smaller model for `draft_model`, a
    trained head for `eagle3` and `dflash`. For `mtp` empty means the model's own layers."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)] = 6
    """Tokens drafted per verification (K); for `suffix` the most of them."""
    use_heterogeneous_vocab: bool = False
    """`draft_model` with another tokenizer: drafts only tokens that both vocabularies have. Needs vLLM 0.29."""
    prompt_lookup_min: Annotated[int, Field(ge=1)] | None = None
    """Shortest match that `ngram` drafts from, in tokens. Empty: 2, or `prompt_lookup_max` if that is less."""
    prompt_lookup_max: Annotated[int, Field(ge=1)] | None = None
    """Longest match that `ngram` looks for, in tokens. Empty: 5, or `prompt_lookup_min` if that is more."""
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=1)] | None = None
    """Longest match and draft of `suffix` together, in tokens. Empty: vLLM's own (24)."""
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] | None = None
    """Earlier answers that `suffix` drafts from; 0: only the request itself. Empty: vLLM's own (10000)."""
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    """`suffix` drafts at most so many tokens per matched token. Empty: vLLM's own (1.0)."""
    suffix_decoding_min_token_prob: Annotated[float, Field(ge=0, le=1)] | None = None
    """`suffix` drafts tokens that are at least so probable by its counts. Empty: vLLM's own (0.1)."""

    @property
    def lookup(self) -> tuple[int, int]:
        """Shortest and longest match of ngram, with the defaults filled in."""
        low = self.prompt_lookup_min or min(LOOKUP_MIN, self.prompt_lookup_max or LOOKUP_MIN)
        return low, self.prompt_lookup_max or max(LOOKUP_MAX, low)

    @model_validator(mode="after")
    def _fits_the_method(self) -> Speculation:
        for name, methods in FIELDS_OF_METHODS.items():
            value = getattr(self, name)
            given = value is not None and value is not False and value != ""
            if given and self.method not in methods:
                raise ValueError(f"`{name}` belongs to method {_either(methods)}, not {self.method}; remove it")
        if not self.drafter and self.method in ("draft_model", "eagle3", "dflash"):
            raise ValueError(f"method {self.method} needs `drafter = ...`: a folder, a hub id or a catalog name")
        if self.lookup[0] > self.lookup[1]:
            raise ValueError("`prompt_lookup_min` is more than `prompt_lookup_max`; exchange them")
        return self


class Engine(Section):
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
    structured_outputs: bool = True
    """Ask this server to enforce `tool_choice` and `response_format`, if its API can. Set it to false for Neuron
    without `enable_structured_outputs`, and for a reasoning model behind `--reasoning-parser`."""
    extra_args: Items[str] = Field(default_factory=list)
    """Arguments added to the server's command line as they are."""
    env: Table[str] = Field(default_factory=dict, repr=False)
    """Environment variables added to the server's."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 900.0
    """How long starting and loading may take, in seconds. A server with a `url` that has not answered for so long
    counts as down until it does."""
    instance_type: str = ""
    """Key in `[accelerators]` for the hourly price. Empty: no infrastructure cost."""
    emulator_script: Path | None = None
    """Scripted replies of an emulated engine."""
    neuron: Neuron | None = None
    """What `platform = "neuron"` needs. With `emulated`: the emulator follows the plugin's rules."""

    @model_validator(mode="after")
    def _one_kind(self) -> Engine:
        if bool(self.url) == bool(self.platform):
            raise ValueError("set exactly one of `url` (a running server) and `platform` (a server to start)")
        if self.url and not _is_http(self.url):
            raise ValueError("`url` is not like http://127.0.0.1:8000")
        if (self.platform == "neuron" and not self.neuron) or (self.neuron and self.platform not in NEURON_RULES):
            raise ValueError(
                'platform "neuron" and a section `[engines.NAME.neuron]` belong together; set both (with platform '
                '"emulated" the section makes the emulator imitate the plugin)'
            )
        if self.neuron and not self.max_model_len:
            raise ValueError("set `max_model_len`: the plugin compiles for the longest context")
        return self


class Canary(Section):
    """Replays greedy steps of a model's drafting engines on one that does not draft, and compares the tokens."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the finished greedy steps of drafting engines that are replayed. 0: none."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 256
    """A replay goes no further into an answer than this, in tokens."""
    near_tie_logprob: Annotated[float, Field(ge=0)] = 0.25
    """Two answers that part between tokens so close in log probability (nats) are a near tie, not different."""


class Volatile(Section):
    """Lines of system prompts that change with every request and would break the context each time."""

    pattern: str
    """Regular expression of whole lines; it may match several lines together."""
    action: Literal["remove", "move"] = "remove"
    """`remove` leaves them out. `move` puts them at the end of the step's last message."""

    @field_validator("pattern")
    @classmethod
    def _usable(cls, pattern: str) -> str:
        try:
            empty = re.search(rf"^(?:{pattern})$", "") is not None
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        if empty:
            raise ValueError("matches the empty line; say what the lines begin with")
        return pattern


class Price(Section):
    """List prices of one model, in USD per million tokens."""

    input: Decimal
    """Prompt tokens that are computed."""
    output: Decimal
    """Generated tokens."""
    cached_input: Decimal | None = None
    """Prompt tokens found in the cache. Empty: the price of `input`."""
    example: bool = False
    """These are example prices; everything that shows them says so."""


class Accelerator(Section):
    """Price of one instance type."""

    usd_per_hour: Decimal
    """USD per hour for the share that one replica uses."""
    example: bool = False
    """This is an example price."""


class Settings(Section):
    """Everything."""

    server: Server = Field(default_factory=Server)
    ledger: Ledger = Field(default_factory=Ledger)
    retention: Retention = Field(default_factory=Retention)
    log: Log = Field(default_factory=Log)
    limits: Limits = Field(default_factory=Limits)
    models: Table[Model] = Field(default_factory=dict)
    engines: Table[Engine] = Field(default_factory=dict)
    speculation: Table[Speculation] = Field(default_factory=dict)
    canary: Table[Canary] = Field(default_factory=dict)
    volatile: Table[Volatile] = Field(default_factory=dict)
    prices: Table[Price] = Field(default_factory=dict)
    accelerators: Table[Accelerator] = Field(default_factory=dict)
    allow_unpriced: bool = False
    """Start although a model has no list price; its list cost is then not reported."""

    @model_validator(mode="after")
    def _references(self) -> Settings:
        config_references.check(self)
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
    values = config_sources.read_file(path) if path else {}
    variables = config_sources.merge_environment(values)
    return parse(values, str(path or "environment"), variables)


def parse(values: dict[str, Any], origin: str, variables: dict[str, str] | None = None) -> Settings:
    """Validate a tree of values. `origin` and, for the fields that it holds, `variables` name them in errors.

    Raises `ConfigError` with one line per bad field.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = [_explain(item, variables or {}) for item in error.errors()]
        raise ConfigError("\n  ".join([f"{origin}:", *problems]), origin=origin) from None


def _explain(item: ErrorDetails, variables: dict[str, str]) -> str:
    """One line: the field, or the variable that set it, and what to do."""
    field = ".".join(str(part) for part in item["loc"])
    name = variables.get(field, field or "settings")
    match item["type"]:
        case "extra_forbidden":
            inside = (variable for path, variable in variables.items() if path.startswith(f"{field}."))
            return f"{next(inside, name)}: no such setting; `paceline config show` lists all"
        case "missing":
            return f"{name}: is missing; set it"
        case _:
            return f"{name}: {item['msg'].removeprefix('Value error, ')}"


def _is_http(url: str) -> bool:
    """Whether a client can connect to it, or at least try."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # a port that is no number, a label that is too long
        return False
    return parts.scheme in {"http", "https"} and bool(host)


def _either(choices: Sequence[str]) -> str:
    return " or ".join(choices)
