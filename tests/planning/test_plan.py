"""Plans: the numbers of the published documents, what does not fit, and that what would fit does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from tests.platforms.engines import files

from paceline.errors import ConfigError, ModelError
from paceline.planning import fit, instances, models
from paceline.planning.fit import Demand
from paceline.planning.instances import Price
from paceline.planning.report import Plan, make
from paceline.rules import memory

QWEN = "qwen3-32b"
BIG, SMALL, UNPRICED = "trn2.48xlarge", "trn2.3xlarge", "trn2u.48xlarge"
REACHABLE = Demand(agents=48, context=32_000, max_model_len=32_768)


def plan(
    demand: Demand = REACHABLE,
    model: str = QWEN,
    instance: str = BIG,
    size: int | None = None,
    price: Price | None = None,
) -> Plan:
    machine = instances.find(instance)
    return make(machine, models.find(model), demand, price or machine.price, size)


def values(found: Plan) -> dict[str, object]:
    return {item.name: item.value for item in found.figures}


def demand(agents: int, context: int) -> Demand:
    return Demand(agents, context, context)


def test_the_numbers_of_the_documents_for_a_32b() -> None:
    found = values(plan())
    assert found["logical cores"] == 64
    assert found["memory of a core"] == 24
    assert found["weights"] == 65.52
    assert found["KV of a token"] == 256
    assert found["tensor parallel size"] == 8
    assert found["replicas"] == 8
    assert found["weights on a core"] == 7.63
    assert found["KV on a core"] == 6.48
    assert found["KV tokens of a replica"] == 212_320
    assert found["streams of a replica"] == 6
    assert found["streams of all replicas"] == 48


def test_the_working_set_and_what_an_hour_costs() -> None:
    found = values(plan(demand(40, 30_000)))
    assert found["working set"] == 1_200_000
    assert found["KV tokens of all replicas"] == 8 * 212_320
    assert found["working set against KV"] == 71
    assert found["contexts that stay"] == 56
    assert found["instance"] == Decimal("35.7608")
    assert found["price book date"] == "2026-10-08"
    assert found["chip"] == Decimal("2.2350")
    assert found["replica"] == Decimal("4.4701")
    assert found["agent"] == Decimal("0.8940")


def test_every_figure_has_a_source_and_a_price_says_example() -> None:
    found = plan()
    assert all(item.source for item in found.figures)
    assert {item.unit for item in found.figures if "$" in item.unit} == {"EXAMPLE $/hour"}


def test_one_chip_by_arithmetic_only() -> None:
    refused = plan(demand(1, 32_768), instance=SMALL)
    assert refused.chosen is None
    assert "TP4: the published least is 8" in refused.problems[0].statement
    assert any(
        remedy.startswith("--tensor-parallel-size 4, by arithmetic") for remedy in refused.problems[0].remedies
    )
    assert f"--instance {BIG}" in refused.problems[0].remedies
    forced = plan(demand(1, 32_768), instance=SMALL, size=4)
    assert forced.fits
    assert values(forced)["KV tokens of a replica"] == 103_936
    assert values(forced)["instance"] == Decimal("2.235")


def test_weights_that_leave_no_room() -> None:
    found = plan(demand(1, 1000), size=2)
    assert found.chosen is None
    assert "weights of 30.51 GiB per core leave 0.00 GiB for KV" in found.problems[0].statement
    assert found.problems[0].remedies == ("--tensor-parallel-size 8",)


def test_a_context_that_no_replica_holds() -> None:
    found = plan(demand(1, 300_000), model="llama-3.1-70b")
    assert found.chosen is None
    (start, length) = found.problems
    assert "are less than max_model_len 300,000" in start.statement
    assert any("fp8" in remedy for remedy in start.remedies)
    assert "131,072" in length.statement


def test_a_context_longer_than_the_model_knows() -> None:
    (length, working_set) = plan(demand(50, 100_000)).problems
    assert "more than the model's own 40,960" in length.statement
    assert "8 replicas hold 2 each, 16 together" in working_set.statement
    assert working_set.remedies == (
        "--agents 16 or fewer",
        "--context 30304 or less (7 contexts on each replica)",
        f"4 instances of {BIG}",
    )


@pytest.mark.parametrize("model", sorted(models.table()))
@pytest.mark.parametrize("instance", [SMALL, BIG])
@pytest.mark.parametrize("asked", [demand(70, 40_000), demand(5, 30_000), demand(2000, 8192)])
def test_what_would_fit_does(model: str, instance: str, asked: Demand) -> None:
    found = plan(asked, model, instance)
    for problem in found.problems:
        for remedy in problem.remedies:
            assert fits_after(remedy, found), remedy


def fits_after(remedy: str, found: Plan) -> bool:
    """Whether something starts, or, where it did before, everything is held."""
    asked, instance, size = found.demand, found.instance.name, None
    match remedy.split():
        case ["--agents", number, *_]:
            asked = replace(asked, agents=int(number))
        case ["--context", number, *_]:
            asked = demand(asked.agents, int(number))
        case ["--max-model-len", number, *_]:
            asked = demand(asked.agents, int(number))
        case ["--tensor-parallel-size", number, *_]:
            size = int(re.sub(r"\D", "", number))
        case ["--instance", instance]:
            pass
        case ["KV", "cache", "in", "fp8", *_]:
            asked = replace(asked, kv_number_bytes=1)
        case [setting, "in", "the", "engine's", *_] if setting.startswith(
            "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION="
        ):
            return holds_all(found, float(setting.partition("=")[2]))
        case [number, "instances", "of", name]:
            chosen = found.chosen
            return name == instance and chosen is not None and int(number) * chosen.total_resident >= asked.agents
        case _:
            return False
    again = plan(asked, found.shape.name, instance, size)
    return again.fits if found.chosen else again.chosen is not None


def holds_all(found: Plan, fraction: float) -> bool:
    """Whether a cache of this share of a core's 21.6 GiB holds every context beside the weights."""
    assert found.chosen
    gib = min(21.6 * fraction, 21.6 - found.chosen.weights_gib)
    contexts = int(gib * 2**30 / found.chosen.kv_bytes) // found.demand.context
    return found.chosen.replicas * contexts >= found.demand.agents


def test_the_cap_of_the_cache_is_a_way_while_the_weights_leave_room() -> None:
    def ways(agents: int) -> list[str]:
        return [way[:43] for problem in plan(demand(agents, 32_768)).problems for way in problem.remedies]

    assert "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION=0.33" in ways(50)
    assert not any(way.startswith("VLLM") for way in ways(200))


def test_a_model_without_a_recipe_is_warned_about(tmp_path: Path) -> None:
    assert plan().warnings == ()
    (tmp_path / "config.json").write_text(
        json.dumps(models.table()[QWEN]["config"] | {"architectures": ["Qwen2ForCausalLM"]})
    )
    (warning,) = plan(model=str(tmp_path)).warnings
    assert warning.rule == "neuron.models-0-29"
    assert "Qwen2ForCausalLM" in warning.statement


def test_of_equal_sizes_the_smallest_is_taken() -> None:
    found = fit.splits(instances.find(BIG), models.find("llama-3.1-8b"), demand(10, 100_000))
    streams = {item.tensor_parallel_size: item.total_streams for item in found}
    assert streams[2] == streams[4] == streams[8] == max(streams.values())
    best = fit.best(found)
    assert best is not None
    assert best.tensor_parallel_size == 2


def test_more_cores_than_kv_heads_hold_them_several_times() -> None:
    shape = models.find(QWEN)
    assert shape.kv_bytes_per_token(8, 2) == shape.kv_bytes_per_token(32, 2) == 32 * 1024
    assert shape.kv_bytes_per_token(8, 1) == 16 * 1024
    assert not shape.can_split(3)


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="splits over 1, 2, 4, 8, 16, 32, 64 cores"):
        plan(size=5)


def test_no_price_is_made_up() -> None:
    found = plan(instance=UNPRICED)
    assert found.fits
    (price,) = (item for item in found.figures if "$" in item.unit)
    assert (price.name, price.value) == ("instance", None)
    assert "no price found" in price.source


@pytest.mark.parametrize(
    ("name", "published"),
    [("qwen3-32b", 32.8), ("qwen3-8b", 8.2), ("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.6)],
)
def test_counted_parameters_are_the_published_ones(name: str, published: float) -> None:
    assert models.find(name).parameters / 1e9 == pytest.approx(published, rel=0.005)


def test_the_shape_of_a_folder(tmp_path: Path) -> None:
    model = files(tmp_path, "LlamaForCausalLM", num_key_value_heads=4, head_dim=16)
    shape = models.find(str(model.folder))
    assert shape.counted == "all tensors of the weight files"
    assert model.weights is not None
    assert shape.parameters * 4 >= model.weights.size_bytes > 0
    assert shape.kv_bytes_per_token(2, 2) == memory.kv_bytes_per_token(model, 2)


def test_a_folder_with_a_configuration_alone_counts_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(models.table()[QWEN]["config"]))
    assert models.find(str(tmp_path)).parameters == models.find(QWEN).parameters


@pytest.mark.parametrize("more", [{"num_experts": 8}, {"quantization_config": {"quant_method": "modelopt"}}])
def test_models_whose_size_does_not_follow_are_refused(more: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(models.table()[QWEN]["config"] | more))
    with pytest.raises(ModelError, match=r"experts|quantised"):
        models.find(str(tmp_path))


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p5\.48xlarge: not known; .*trn2\.3xlarge, trn2\.48xlarge"):
        instances.find("p5.48xlarge")
    with pytest.raises(ModelError, match=r"known .*qwen3-32b"):
        models.find("gpt-7")
    with pytest.raises(ModelError, match=r"no config\.json"):
        models.find(str(tmp_path))
