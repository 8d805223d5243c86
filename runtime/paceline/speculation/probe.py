"""Times the matrix products of forward passes: one file for an engine's Python, which needs nothing but torch.

Reads one JSON object from stdin and prints one. In: `device` (cpu, cuda, neuron), `dtype`, `repeats`,
`memory_bytes` for all matrices, `token_counts`, and `models`: a list of products per name, each with `rows`,
`columns`, `count` per forward pass, `per_token` rows of input for each token, and `last_only` where a pass needs
it for one token only.
Out: `seconds[model][tokens]`, a number per pass, and what they were measured on.
"""

from __future__ import annotations

import json
import platform
import random
import sys
import time
from typing import Any, Callable  # noqa: UP035 - engines may run on older Pythons

import torch
from torch.nn.functional import linear

Product = dict[str, Any]
Run = Callable[[], Any]

SINGLES = 3
"""Times that a round has a pass over one token: every ratio rests on it."""


def main() -> None:
    """Measure what stdin describes."""
    wanted = json.load(sys.stdin)
    device, dtype = open_device(wanted["device"]), getattr(torch, wanted["dtype"])
    products = [product for model in wanted["models"].values() for product in model]
    total = sum(product["rows"] * product["columns"] * product["count"] for product in products) * dtype.itemsize
    share = min(1.0, wanted["memory_bytes"] / total)
    with torch.inference_mode():
        runs: dict[tuple[str, int], Run] = {}
        held = 0
        for name, model in wanted["models"].items():
            weights = [copies(product, share, dtype, device) for product in model]
            held += sum(matrix.nbytes for matrices in weights for matrix in matrices)
            for tokens in wanted["token_counts"]:
                runs[name, tokens] = prepare(forward(model, weights, tokens), device)
        seconds = measure(runs, wanted["repeats"], device)
    found = {
        "seconds": seconds,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matrix_bytes": held,
        "model_bytes": total,
    }
    print(json.dumps(found))  # noqa: T201 - the answer to the process that started this one


def open_device(name: str) -> torch.device:
    """The device, after loading what provides it. Ends the process with the reason where there is none."""
    try:
        if name == "neuron":
            import torch_neuronx  # noqa: F401, PLC0415 - registers the device, and is on Neuron machines only
        torch.empty(1, device=name)
    except Exception as error:  # noqa: BLE001 - each backend has its own; the reason is passed on
        sys.exit(f"no device {name} in {sys.executable}: {error}")
    return torch.device(name)


def copies(product: Product, share: float, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Matrices of one shape: as many as a pass has, lest caches hold more than in an engine, or that share."""
    first = torch.rand(product["rows"], product["columns"], dtype=dtype).sub_(0.5).to(device)
    return [first, *(first.clone() for _ in range(int(product["count"] * share) - 1))]


def forward(model: list[Product], weights: list[list[torch.Tensor]], tokens: int) -> Run:
    """All products of one pass over `tokens` tokens, layer by layer."""
    steps: list[tuple[float, torch.Tensor, torch.Tensor]] = []
    for product, matrices in zip(model, weights):  # noqa: B905 - `strict` is younger than some engines
        rows = product["per_token"] * (1 if product["last_only"] else tokens)
        given = torch.rand(rows, product["columns"], dtype=matrices[0].dtype).to(matrices[0].device)
        count = product["count"]
        steps += [((index + 0.5) / count, given, matrices[index % len(matrices)]) for index in range(count)]
    ordered = [(given, matrix) for _, given, matrix in sorted(steps, key=lambda step: step[0])]
    return lambda: [linear(given, matrix) for given, matrix in ordered]


def prepare(run: Run, device: torch.device) -> Run:
    """Warm up; on CUDA record a graph, on Neuron compile, as engines do to save the start of each product."""
    if device.type == "neuron":
        run = torch.compile(run, backend="neuron")
    run()
    run()
    synchronize(device)
    if device.type != "cuda":
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Run = graph.replay
    replay()
    return replay


def measure(
    runs: dict[tuple[str, int], Run], repeats: int, device: torch.device
) -> dict[str, dict[int, list[float]]]:
    """Seconds of each pass. A round has every model and token count, in an order of its own."""
    seconds: dict[str, dict[int, list[float]]] = {}
    each = [run for run in runs for _ in range(SINGLES if run[1] == 1 else 1)]
    for index in range(repeats):
        for name, tokens in random.Random(index).sample(each, len(each)):  # noqa: S311 - an order, no secret
            synchronize(device)
            started = time.perf_counter()
            runs[name, tokens]()
            synchronize(device)
            elapsed = time.perf_counter() - started
            seconds.setdefault(name, {}).setdefault(tokens, []).append(elapsed)
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait for what was started on the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def device_name(device: torch.device) -> str:
    """What the machine calls the device."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name())
    return platform.machine() if device.type == "cpu" else device.type


if __name__ == "__main__":
    main()
