"""An engine as a part of a Kubernetes pod: container, probes and volumes."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from paceline import config, platforms
from paceline.platforms import neuron, text
from paceline.platforms.plan import LaunchPlan

COMMENT = """\
# A part of a pod's `spec`. Not in it: volumes with the models and a remote cache, node selection. The claim
# `paceline-compile-cache` and the secret of the variables are yours to make.
"""
CACHE = Path("/var/cache/paceline")
CLAIM = "paceline-compile-cache"
STARTUP_SECONDS = 30
WIDTH = 10_000
"""JSON arguments stay on one line."""
PARALLEL_FLAGS = ("--tensor-parallel-size", "-tp")
ANY_HOST = ("--host", "0.0.0.0")  # noqa: S104 - the pod's own network
NO_IMAGE = "IMAGE"
"""Where no published image is known."""


def fragment(
    name: str,
    engine: config.Engine,
    speculation: config.Speculation | None,
    model_path: str,
    *,
    port: int,
    image: str,
) -> str:
    """The YAML text. Raises `ConfigError` for a platform that cannot be launched."""
    if engine.neuron and not engine.neuron.compile_cache:
        engine = engine.model_copy(update={"neuron": engine.neuron.model_copy(update={"compile_cache": CACHE})})
    plan = platforms.as_written(engine, speculation, model_path, Path(engine.python or "python"), port)
    values = {"containers": [container(name, engine, plan, port, image)], "volumes": volumes(engine)}
    return f"{COMMENT}{yaml.safe_dump(values, sort_keys=False, width=WIDTH)}"


def container(name: str, engine: config.Engine, plan: LaunchPlan, port: int, image: str) -> dict[str, Any]:
    """The container, listening to the whole pod network."""
    program, flags = text.split(plan.command)
    arguments = [part for flag in flags for part in (ANY_HOST if flag[0] == "--host" else flag)]
    device = engine.neuron if engine.platform == "neuron" else None
    found = image or (neuron.image(device) if device else "") or NO_IMAGE
    return {
        "name": label(name),
        "image": found,
        "command": program,
        "args": arguments,
        "env": variables(name, engine, plan),
        "ports": [{"name": "http", "containerPort": port}],
        **resources(engine),
        "volumeMounts": mounts(engine),
        **probes(engine, port),
    }


def label(name: str) -> str:
    """The engine's name as Kubernetes takes it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def variables(name: str, engine: config.Engine, plan: LaunchPlan) -> list[dict[str, Any]]:
    """The variables. Cores are the device plugin's choice, and numbered within the pod."""
    found: list[dict[str, Any]] = []
    for key, value in text.environment(plan, engine).items():
        if text.is_secret(key):
            reference = {"secretKeyRef": {"name": f"paceline-engine-{label(name)}", "key": key}}
            found.append({"name": key, "valueFrom": reference})
        elif key != "NEURON_VISIBLE_DEVICES":
            found.append({"name": key, "value": value})
    return found


def resources(engine: config.Engine) -> dict[str, Any]:
    """The devices: as many logical NeuronCores or GPUs as the model is split over."""
    if engine.platform == "neuron" and engine.neuron:
        limits = {"aws.amazon.com/neuroncore": engine.neuron.tensor_parallel_size}
    elif engine.platform == "cuda":
        limits = {"nvidia.com/gpu": _parallel(engine.extra_args)}
    else:
        return {}
    return {"resources": {"limits": limits}}


def _parallel(arguments: list[str]) -> int:
    parts = " ".join(arguments).replace("=", " ").split()
    found = [value for flag, value in pairwise(parts) if flag in PARALLEL_FLAGS]
    return int(found[-1]) if found and found[-1].isdecimal() else 1


def mounts(engine: config.Engine) -> list[dict[str, Any]]:
    """Shared memory between the ranks, and compiled graphs."""
    found = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - where POSIX shared memory is
    if engine.neuron:
        found.append({"name": "compile-cache", "mountPath": str(engine.neuron.compile_cache)})
    return found


def volumes(engine: config.Engine) -> list[dict[str, Any]]:
    """What the mounts name."""
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if engine.neuron:
        found.append({"name": "compile-cache", "persistentVolumeClaim": {"claimName": CLAIM}})
    return found


def probes(engine: config.Engine, port: int) -> dict[str, Any]:
    """The start may take `start_timeout_seconds`: nothing else is asked before it is over."""
    tries = math.ceil(engine.start_timeout_seconds / STARTUP_SECONDS)
    return {
        "startupProbe": _probe(port, STARTUP_SECONDS, tries),
        "readinessProbe": _probe(port, 10, 3),
        "livenessProbe": _probe(port, 60, 3),
    }


def _probe(port: int, seconds: int, tries: int) -> dict[str, Any]:
    health = {"path": "/health", "port": port}
    return {"httpGet": health, "timeoutSeconds": 5, "periodSeconds": seconds, "failureThreshold": tries}
