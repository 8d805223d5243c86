"""What `paceline engine render` prints, to the letter; UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.platforms.engines import DFLASH, DFLASH_ENGINE, EAGLE3, PLUGINS, engine_values
from typer.testing import CliRunner

from paceline import config, platforms
from paceline.cli import config_text
from paceline.cli.main import app
from paceline.errors import ConfigError
from paceline.platforms.compilecache import Compiled, cache_key, folder

GOLDEN = Path(__file__).parent / "golden"
CACHE = {"compile_cache": "/var/cache/neuron"}
NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 6}
FIXED = {"dtype": "float32", "kv_cache_gib": 2, "max_model_len": 4096}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "neuron-0.21-eagle3": (engine_values(PLUGINS["0.21"], CACHE), EAGLE3),
    "neuron-0.24-eagle3": (engine_values(PLUGINS["0.24"], CACHE), EAGLE3),
    "neuron-0.24-dflash": (engine_values(PLUGINS["0.24"], CACHE | DFLASH_ENGINE), DFLASH),
    "neuron-0.29-eagle3": (engine_values(PLUGINS["0.29"], CACHE), EAGLE3),
    "neuron-0.29-plain": (
        engine_values(
            PLUGINS["0.29"],
            {
                **CACHE,
                "sampling": "cpu",
                "cores": "0,2,4-9",
                "num_seqs_buckets": [1, 4],
                "decode_context_length_buckets": [4096],
                "num_gpu_blocks_override": 1024,
                "remote_cache": "/mnt/shared/neuron",
                "compile_workers": 4,
                "compile_timeout_seconds": 2400,
            },
            structured_outputs=False,
            env={"HF_TOKEN": "hidden", "NEURON_RT_EXEC_TIMEOUT": "600"},
        ),
        None,
    ),
    "cpu": ({"model": "llama", "platform": "cpu", **FIXED}, NGRAM),
    "cuda": ({"model": "llama", "platform": "cuda", "extra_args": ["--tensor-parallel-size", "2"]}, NGRAM),
}


def settings(engine: dict[str, Any], profile: dict[str, Any] | None) -> config.Settings:
    more = {"speculation": {"drafts": profile}} if profile else {}
    named = engine | ({"speculation": "drafts"} if profile else {})
    values = {"models": {"llama": {"path": "/models/llama"}}, "engines": {"Trn_1": named}, **more}
    return config.parse(values, "test")


def render(folder: Path, given: config.Settings, *arguments: str) -> tuple[int, str, str]:
    file = folder / "paceline.toml"
    file.write_text(config_text.commented(given))
    result = CliRunner().invoke(app, ["engine", "render", "Trn_1", "-c", str(file), *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("style", ["cli", "env", "k8s"])
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, style: str, tmp_path: Path) -> None:
    code, printed, _ = render(tmp_path, settings(*CASES[name]), "--format", style)
    assert code == 0
    golden = GOLDEN / f"{name}.{style}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(printed)
    assert printed == golden.read_text()
    assert "hidden" not in printed


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("neuron")])
def test_what_is_rendered_is_what_is_launched(name: str) -> None:
    given = settings(*CASES[name])
    engine, profile = given.engines["Trn_1"], given.speculation.get("drafts")
    plan = platforms.as_written(engine, profile, "/models/llama", Path("python"), 1)
    values = json.loads(plan.command[plan.command.index("--additional-config") + 1])["neuron_config"]
    assert values["num_batched_tokens_buckets"][-1] == int(
        plan.command[plan.command.index("--max-num-batched-tokens") + 1]
    )
    assert values["num_seqs_buckets"][-1] == engine.max_concurrent_steps
    assert ("--per-request-spec-decode-metrics" in plan.command) == ("0.29-eagle3" in name)
    assert plan.env["VLLM_CACHE_ROOT"].startswith("/var/cache/neuron/0.2")


@pytest.mark.parametrize(
    ("neuron", "segments"),
    [
        ({}, [2048]),
        ({"prefix_caching": False}, [2048]),
        ({"prefix_caching": False, "segment_size": 8192}, None),
        ({"segment_size": 8192}, [8192]),
    ],
)
def test_prompts_are_cut_where_they_must_be(neuron: dict[str, Any], segments: list[int] | None) -> None:
    given = config.Engine.model_validate(engine_values(neuron=neuron))
    command = platforms.as_written(given, None, "/models/llama", Path("python"), 1).command
    values = json.loads(command[command.index("--additional-config") + 1])["neuron_config"]
    assert values.get("kv_segment_size_buckets") == segments
    assert ("--no-enable-prefix-caching" in command) == ("prefix_caching" in neuron)


@pytest.mark.parametrize("name", CASES)
def test_the_kubernetes_part_has_volumes_for_its_mounts(name: str, tmp_path: Path) -> None:
    given = settings(*CASES[name])
    pod = yaml.safe_load(render(tmp_path, given, "--format", "k8s", "--image", "mine")[1])
    (container,) = pod["containers"]
    assert container["image"] == "mine"
    assert container["name"] == "trn-1"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["args"][container["args"].index("--host") + 1] == "0.0.0.0"
    probe = container["startupProbe"]
    assert (
        probe["periodSeconds"] * probe["failureThreshold"]
        >= settings(*CASES[name]).engines["Trn_1"].start_timeout_seconds
    )


def test_refusals_name_rule_and_remedy(tmp_path: Path) -> None:
    code, printed, error = render(tmp_path, settings(engine_values(neuron={"segment_size": 3072}), NGRAM))
    assert (code, printed) == (1, "")
    assert "neuron.segment-size: no kernel for segments of 3072 tokens (set `segment_size` to one of" in error
    assert "neuron.trained-heads-only: neuron does not run method ngram" in error


@pytest.mark.parametrize("plugin", ["0.5.3", "0.9.1"])
def test_retired_generations_are_not_rendered(plugin: str, tmp_path: Path) -> None:
    code, printed, error = render(tmp_path, settings(engine_values(plugin), None))
    assert (code, printed) == (1, "")
    assert "-retired: " in error


def test_warnings_go_to_standard_error(tmp_path: Path) -> None:
    code, printed, error = render(tmp_path, settings(engine_values("0.33.0.1.5.0"), None))
    assert code == 0
    assert "# warning neuron.unverified: rules unverified for plugin 0.33.0.1.5.0 (newest known: 0.29)" in error
    assert "warning" not in printed


@pytest.mark.parametrize(
    ("engine", "part"),
    [
        ({"model": "llama", "url": "http://127.0.0.1:8000"}, "is a running server"),
        ({"model": "llama", "platform": "neuron"}, "`[engines.NAME.neuron]` belong together"),
        (engine_values() | {"platform": "cpu"}, "`[engines.NAME.neuron]` belong together"),
        (engine_values() | {"max_model_len": None}, "set `max_model_len`"),
        (engine_values(neuron={"cores": "7-0"}), "goes backwards; write 0-7"),
        (engine_values(neuron={"cores": "0-3,3"}), "names a core twice"),
        (engine_values(neuron={"cores": "all"}), "must be cores like 0-7"),
        (engine_values(plugin="newest"), "must be a version such as 0.29.0.1.2.0"),
        (engine_values(neuron={"logical_nc_config": 3}), "logical_nc_config"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(engine: dict[str, Any], part: str, tmp_path: Path) -> None:
    lines = [f"{key} = {config_text.toml_value(value)}" for key, value in engine.items() if value is not None]
    (tmp_path / "paceline.toml").write_text(
        "\n".join(['[models.llama]\npath = "/models/llama"', "[engines.Trn_1]", *lines])
    )
    result = CliRunner().invoke(app, ["engine", "render", "Trn_1", "-c", str(tmp_path / "paceline.toml")])
    assert result.exit_code == 1
    assert part in result.stderr


def test_a_core_belongs_to_one_engine() -> None:
    models = {"models": {"llama": {"path": "/models/llama"}}}
    two = {"one": engine_values(neuron={"cores": "0-7"}), "two": engine_values(neuron={"cores": "7-14"})}
    with pytest.raises(ConfigError, match=r"engines\.two\.neuron\.cores: core 7 is engines\.one's"):
        config.parse(models | {"engines": two}, "test")
    apart = two | {"two": engine_values(neuron={"cores": "8-15"})}
    assert config.parse(models | {"engines": apart}, "test").engines["two"].neuron


def test_an_unknown_engine_is_named(tmp_path: Path) -> None:
    (tmp_path / "paceline.toml").write_text("")
    result = CliRunner().invoke(app, ["engine", "render", "x", "-c", str(tmp_path / "paceline.toml")])
    assert (result.exit_code, "no [engines.x] in the configuration; known: none" in result.stderr) == (1, True)


COMPILED = Compiled(
    plugin="0.29.0.1.2.0",
    model="/models/Llama 3.1",
    dtype="bfloat16",
    tensor_parallel_size=8,
    logical_nc_config=2,
    block_size=32,
    num_gpu_blocks=4096,
    max_model_len=8192,
    max_num_seqs=4,
    segment_size=2048,
    prefix_caching=True,
    num_batched_tokens_buckets=(2048,),
    num_seqs_buckets=(1, 4),
    decode_context_length_buckets=(4096,),
    sampling="greedy",
    structured_outputs=True,
    method="eagle3",
    drafter="/models/head",
    num_speculative_tokens=3,
    extra_args=("--seed", "1"),
)
OTHER: dict[type, Any] = {str: "other", int: 7, bool: False, tuple: (128,)}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Compiled)])
def test_each_setting_has_its_own_compiled_graphs(field: str) -> None:
    other: dict[str, Any] = {field: OTHER[type(getattr(COMPILED, field))]}
    assert cache_key(dataclasses.replace(COMPILED, **other)) != cache_key(COMPILED)
    assert cache_key(dataclasses.replace(COMPILED)) == cache_key(COMPILED)


def test_the_folder_can_be_read() -> None:
    assert str(folder(COMPILED)) == f"0.29.0.1.2.0/llama-3.1/eagle3-k3-{cache_key(COMPILED)}"
    plain = dataclasses.replace(COMPILED, method="none", num_speculative_tokens=0)
    assert folder(plain).name.startswith("plain-")
