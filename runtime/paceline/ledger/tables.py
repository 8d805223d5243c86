"""The tables. Times are UTC microseconds, durations microseconds, money nano-USD, token ids uint32 little-endian.

Facts about a dispatch (usage, speculation, timings, cost) are kept once, with the attempt; a step shows those of
its last attempt. NULL means not reported, never 0.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_ID = String(64)
_HASH = String(128)
_NAME = String(256)
_WORD = String(32)
_OPEN = text("outcome_kind IS NULL")
_UNENDED = text("state IN ('queued', 'running')")
_STORED = text("content_deleted_at IS NULL")
_OWN_TIME = text("retention_seconds IS NOT NULL OR content_deleted_at IS NOT NULL")
_DISPATCHED = text("state = 'running'")

workflows = Table(
    "workflows",
    metadata,
    Column("tenant", _ID, primary_key=True),
    Column("workflow_id", _ID, primary_key=True),
    Column("request_hash", _HASH, nullable=False),
    Column("model", _NAME, nullable=False),
    Column("system", Text, nullable=False),
    Column("tools", Text, nullable=False),  # JSON
    Column("sampling", Text, nullable=False),  # JSON
    Column("labels", Text, nullable=False),  # JSON, as the client gave them; `workflow_labels` is for queries
    Column("budget_list_nanos", BigInteger),
    Column("budget_tokens", BigInteger),
    Column("budget_steps", BigInteger),
    Column("spent_list_nanos", BigInteger, nullable=False),
    Column("spent_tokens", BigInteger, nullable=False),
    Column("spent_steps", BigInteger, nullable=False),
    Column("reserved_list_nanos", BigInteger, nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("transcript_policy", _WORD, nullable=False, server_default="append_only"),
    Column("store", _WORD, nullable=False, server_default="full"),
    Column("retention_seconds", BigInteger),
    Column("content_deleted_at", BigInteger),
    Column("system_gone", Boolean, nullable=False, server_default=false()),
    Column("tools_gone", Boolean, nullable=False, server_default=false()),
    Column("content_left", Boolean, nullable=False, server_default=false()),  # only shared steps were deleted
    Column("parent_workflow_id", _ID),
    Column("forked_step_id", _ID),
    Column("head_step_id", _ID),
    Column("replica", _NAME),
    Column("outcome_kind", _WORD),
    Column("outcome_source", _WORD),
    Column("outcome_exit_code", Integer),
    Column("outcome_note", Text),
    Column("outcome_set_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["tenant", "parent_workflow_id"], ["workflows.tenant", "workflows.workflow_id"]),
    Index(None, "tenant", "created_at", "workflow_id"),
    Index(None, "tenant", "parent_workflow_id"),
    # By creation, which never changes, so that a step does not write this index.
    Index("ix_workflows_open", "created_at", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("ix_workflows_stored", "created_at", sqlite_where=_STORED, postgresql_where=_STORED),
    Index("ix_workflows_own_time", "content_deleted_at", sqlite_where=_OWN_TIME, postgresql_where=_OWN_TIME),
)

workflow_labels = Table(
    "workflow_labels",
    metadata,
    Column("tenant", _ID, primary_key=True),
    Column("workflow_id", _ID, primary_key=True),
    Column("name", _ID, primary_key=True),
    Column("value", _NAME, nullable=False),
    ForeignKeyConstraint(["tenant", "workflow_id"], ["workflows.tenant", "workflows.workflow_id"]),
    Index(None, "tenant", "name", "value", "workflow_id"),
)

outcome_changes = Table(
    "outcome_changes",
    metadata,
    Column("change_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("tenant", _ID, nullable=False),
    Column("workflow_id", _ID, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("old_kind", _WORD),
    Column("old_source", _WORD),
    Column("kind", _WORD, nullable=False),
    Column("source", _WORD, nullable=False),
    Column("exit_code", Integer),
    Column("note", Text, nullable=False),
    ForeignKeyConstraint(["tenant", "workflow_id"], ["workflows.tenant", "workflows.workflow_id"]),
    Index(None, "tenant", "workflow_id"),
)

preambles = Table(
    "preambles",
    metadata,
    Column("preamble_id", _ID, primary_key=True),  # hash of tenant and content: most steps of a workflow share one
    Column("system", Text, nullable=False),
    Column("tools", Text, nullable=False),  # JSON
)

steps = Table(
    "steps",
    metadata,
    Column("step_id", _ID, primary_key=True),
    Column("tenant", _ID, nullable=False),
    Column("workflow_id", _ID, nullable=False),
    Column("request_id", _ID, nullable=False),
    Column("request_hash", _HASH, nullable=False),
    Column("parent_step_id", _ID, ForeignKey("steps.step_id")),
    Column("preamble_id", _ID, ForeignKey("preambles.preamble_id")),
    Column("state", _WORD, nullable=False),
    Column("runtime_id", _ID, nullable=False),
    Column("input", Text, nullable=False),  # JSON
    Column("output", Text),  # JSON
    Column("message_keys", LargeBinary),  # hashes of input and output: see transcript/fingerprint.py
    Column("calls", Text),  # JSON, ids and names of the calls of the output
    Column("chain_hash", LargeBinary),  # of the conversation up to here
    Column("workflow_match", _WORD),  # how the workflow was found
    Column("malformed_tool_calls", Integer, nullable=False),
    Column("output_flags", Text),  # JSON
    Column("finish_reason", _WORD),
    Column("carried_tokens", BigInteger),
    Column("rendered_ids", LargeBinary),
    Column("generated_ids", LargeBinary),
    Column("tokenizer_hash", _HASH),
    Column("template_hash", _HASH),
    Column("model_hash", _HASH),
    Column("reuse_prompt_tokens", BigInteger),
    Column("reuse_carried_tokens", BigInteger),
    Column("reuse_rendered_tokens", BigInteger),
    Column("reuse_break", _WORD),
    Column("reuse_break_message", Integer),
    Column("reuse_dropped_tokens", BigInteger),
    Column("reuse_kept_reasoning_tokens", BigInteger),
    Column("reuse_volatile_blocks", Integer),
    Column("reuse_block_tokens", Integer),  # of a block of the replica's cache
    Column("attempt_count", Integer, nullable=False),
    Column("last_attempt_id", _ID),
    Column("error_reason", _ID, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    ForeignKeyConstraint(["tenant", "workflow_id"], ["workflows.tenant", "workflows.workflow_id"]),
    UniqueConstraint("tenant", "request_id"),
    Index(None, "tenant", "workflow_id", "created_at", "step_id"),
    Index(None, "parent_step_id"),
    Index(None, "preamble_id"),
    Index(None, "tenant", "chain_hash"),
    Index("ix_steps_unended", "runtime_id", sqlite_where=_UNENDED, postgresql_where=_UNENDED),
)

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", _ID, primary_key=True),
    Column("step_id", _ID, ForeignKey("steps.step_id"), nullable=False),
    Column("tenant", _ID, nullable=False),
    Column("workflow_id", _ID, nullable=False),
    Column("number", Integer, nullable=False),
    Column("replica", _NAME, nullable=False),
    Column("runtime_id", _ID, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("error_reason", _ID, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("reserved_list_nanos", BigInteger, nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("uncached_prompt_tokens", BigInteger),
    Column("cached_prompt_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("prompt_source", _WORD),
    Column("output_source", _WORD),
    Column("speculation_profile", _NAME, nullable=False),
    Column("drafted_tokens", BigInteger),
    Column("accepted_tokens", BigInteger),
    Column("mean_acceptance_length", Float),
    Column("draft_steps", BigInteger),  # verifications of drafts
    Column("step_class", _WORD),  # of the answer: see workflow/stepclass.py
    Column("pool_choice", _WORD),  # why this pool of the model, with the two terms that were compared
    Column("pool_saving_us", BigInteger),
    Column("pool_prefill_us", BigInteger),
    Column("queue_us", BigInteger),
    Column("first_token_us", BigInteger),
    Column("decode_us", BigInteger),
    Column("total_us", BigInteger),
    Column("accelerator_us", BigInteger),
    Column("list_nanos", BigInteger),
    Column("infrastructure_nanos", BigInteger),
    Column("price_name", _NAME, nullable=False),
    Column("example_price", Boolean, nullable=False),
    Column("dispatched_at", BigInteger, nullable=False),
    Column("checkpointed_at", BigInteger),
    Column("ended_at", BigInteger),
    UniqueConstraint("step_id", "number"),
    Index(None, "tenant", "workflow_id"),
    Index("ix_attempts_running", "runtime_id", sqlite_where=_DISPATCHED, postgresql_where=_DISPATCHED),
)

runtimes = Table(
    "runtimes",
    metadata,
    Column("runtime_id", _ID, primary_key=True),
    Column("host", _NAME, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", _ID, primary_key=True),
    Column("secret_hash", _HASH, nullable=False),
    Column("tenant", _ID, nullable=False),
    Column("name", _NAME, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)
