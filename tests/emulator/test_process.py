"""The command: its ready line, its end, and options that cannot be."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import orjson
import pytest
from tests.emulator.conftest import Launch, events_of, ready_url

from paceline.emulator.server import EXIT_CODE_OF_FAULT


async def test_it_serves_a_script_and_ends_on_sigterm(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_bytes(orjson.dumps({"reply": "scripted"}))
    process = await launch("--time-scale", "0", "--script", str(script), "--served-model-name", "m")
    url = await ready_url(process)
    async with aiohttp.ClientSession() as http:
        async with http.post(url + "/v1/completions", json={"model": "m", "prompt": [1, 2]}) as reply:
            assert (await reply.json())["choices"][0]["text"] == "scripted"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_the_exit_fault_sends_an_error_and_ends_the_process(launch: Launch) -> None:
    process = await launch("--time-scale", "0")
    url = await ready_url(process)
    async with aiohttp.ClientSession() as http:
        async with http.post(url + "/emulator/faults", json=[{"kind": "exit", "after_tokens": 2}]) as reply:
            assert reply.status == 200
        text = ""
        try:
            async with http.post(url + "/v1/completions", json={"prompt": [1], "stream": True}) as reply:
                async for line in reply.content:
                    text += line.decode()
        except aiohttp.ClientPayloadError:
            pass
    assert [event.get("error", {}).get("code") for event in events_of(text)] == [None, None, 500]
    assert await process.wait() == EXIT_CODE_OF_FAULT


DRAFT_OF_TWO = '{"method":"draft_model","num_speculative_tokens":2}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--per-request-spec-decode-metrics", "summary"], "needs a speculative-config"),
        (["--emulate-version", "0.24", "--enable-per-request-metrics"], "no per-request metrics"),
        (["--num-gpu-blocks-override", "4"], "too few blocks"),
        (["--speculative-config", '{"method":"eagle3","num_speculative_tokens":2}'], "method must be"),
        (["--speculative-config", '{"method":"ngram"}'], "num_speculative_tokens"),
        (["--speculative-config", DRAFT_OF_TWO, "--acceptance", "0.9"], "one rate for each"),
        (["--script", "/no/such/file"], "No such file"),
        (["--max-num-seqs", "0"], "at least 1"),
    ],
)
async def test_impossible_options_are_refused(launch: Launch, options: list[str], message: str) -> None:
    process = await launch(*options)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert message in errors.decode()
