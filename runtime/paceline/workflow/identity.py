"""Opaque ids and the hash that tells a repeated request from another one."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace

import orjson

from paceline.workflow.commands import Append, CreateWorkflow, ForkWorkflow, RunStep


def new_id(kind: str) -> str:
    """A new opaque id such as `st_…`, 128 random bits, within [A-Za-z0-9_-]{8,64}."""
    return f"{kind}_{secrets.token_urlsafe(16)}"


def step_hash(command: RunStep) -> str:
    """Hash of all that makes a step what it is: not its key, who sent it or how long it outlives its readers."""
    kind = b"append" if isinstance(command.input, Append) else b"conversation"
    return _digest(kind, replace(command, tenant="", request_id="", detach_grace=0.0, caller=""))


def workflow_hash(command: CreateWorkflow | ForkWorkflow) -> str:
    """Hash of a request that makes a workflow, ids included."""
    return _digest(b"workflow", command)


def cache_salt(tenant: str) -> str:
    """The tenant's KV-cache salt: tenants never share cached blocks. At most 128 characters, URL-safe."""
    return hashlib.sha256(b"paceline-cache-salt\0" + tenant.encode()).hexdigest()[:32]


def _digest(kind: bytes, command: RunStep | CreateWorkflow | ForkWorkflow) -> str:
    return hashlib.sha256(kind + orjson.dumps(command, option=orjson.OPT_SORT_KEYS)).hexdigest()
