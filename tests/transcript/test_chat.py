"""First prompts and continuations, against the template's own rendering of the whole conversation."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.transcript.conversations import TOOLS, assistant, call, result, user

from paceline.errors import InvalidTool, ModelError
from paceline.transcript import builtin
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.families import detect, gpt_oss, llama3, plain, qwen2_5, qwen3, qwen3_coder
from paceline.transcript.families.base import Family, Signs
from paceline.transcript.probes import Finding
from paceline.transcript.rendering import TemplateRenderer
from paceline.transcript.template import ChatTemplate
from paceline.transcript.tokenizer import load_tokenizer
from paceline.workflow.model import Message, Tool

ANSWERS_AND_NEWS = [
    (assistant("Done."), [user("Thanks, go on.")]),
    (assistant("", call("a.py")), [result("x = 1\n")]),
    (assistant("Reading.", call("a.py"), call("b.py", "call_2")), [result("x"), result("y", "call_2")]),
    (assistant("Reading.", call("a.py")), [result("x"), user("And now?")]),
    (assistant("Done."), [user("One."), assistant("Two."), user("Three.")]),
]


def make(template: str, family: Family = plain.FAMILY, end_ids: tuple[int, ...] = ()) -> ChatModel:
    """The built-in tokenizer under another template."""
    tokenizer = load_tokenizer("emulated")
    return ChatModel(tokenizer, TemplateRenderer(ChatTemplate(template), tokenizer), family, end_ids)


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize(("answer", "news"), ANSWERS_AND_NEWS)
async def test_a_continuation_is_what_the_template_would_have_written(
    model: ChatModel, system: str, answer: Message, news: list[Message]
) -> None:
    whole = await model.render_first(system, TOOLS, [user("Hi."), answer, *news])
    seam = await model.render_continuation(news, TOOLS, closed=False)
    assert whole[-len(seam) :] == seam
    assert seam[0] == model.closing_ids[0]
    before = model.tokenizer.decode(whole[: -len(seam)])
    assert before.endswith("}\n</tool_call>" if answer.tool_calls else answer.content)


@pytest.mark.parametrize(("answer", "news"), ANSWERS_AND_NEWS)
async def test_prompt_and_generated_ids_are_a_prefix_of_the_next_prompt(
    model: ChatModel, answer: Message, news: list[Message]
) -> None:
    """Joined by ids, the conversation reads as the template writes it; the model's own ids are in it unchanged."""
    prompt = await model.render_first("", TOOLS, [user("Hi.")])
    whole = await model.render_first("", TOOLS, [user("Hi."), answer, *news])
    written = model.tokenizer.decode(whole)[len(model.tokenizer.decode(prompt)) :].split("<|im_end|>")[0]
    generated = [token for character in written for token in model.tokenizer.encode_now(character)]
    generated.append(model.closing_ids[0])
    assert model.closes(generated)
    following = prompt + generated + await model.render_continuation(news, TOOLS, closed=True)
    assert model.tokenizer.decode(following) == model.tokenizer.decode(whole)


async def test_a_cut_turn_is_closed_by_the_template(model: ChatModel) -> None:
    assert not model.closes(model.tokenizer.encode_now("cut in the mid"))
    assert not model.closes([])
    closed = await model.render_continuation([user("Go on.")], (), closed=True)
    cut = await model.render_continuation([user("Go on.")], (), closed=False)
    assert cut == [model.closing_ids[0], *closed]
    assert model.tokenizer.decode(closed) == "\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


async def test_results_of_parallel_calls_share_a_turn(model: ChatModel) -> None:
    ids = await model.render_continuation([result("x"), result("y")], TOOLS, closed=True)
    assert model.tokenizer.decode(ids).count("<|im_start|>user") == 1


async def test_every_end_id_stops_and_the_turn_end_comes_first(model: ChatModel) -> None:
    ends = [model.tokenizer.id_of("<|im_end|>"), model.tokenizer.id_of("<|endoftext|>")]
    assert list(model.stop_token_ids) == ends
    assert model.closing_ids[0] == ends[0]


async def test_a_model_is_loaded_once(qwen_folder: Path) -> None:
    assert await load(str(qwen_folder)) is await load(str(qwen_folder))


async def test_a_given_template_replaces_the_models_own(qwen_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    other.write_text(builtin.TEMPLATE.replace("Call a tool by writing", "Tools are called like this:"))
    own, replaced = await load(str(qwen_folder)), await load(str(qwen_folder), other)
    assert "called like this" in replaced.tokenizer.decode(await replaced.render_first("", TOOLS, [user("Hi.")]))
    assert own.template_hash != replaced.template_hash
    assert own.tokenizer_hash == replaced.tokenizer_hash


async def test_a_model_is_told_by_its_configuration_and_weights_wherever_they_lie(
    qwen_folder: Path, tmp_path: Path
) -> None:
    hashes = []
    for name, layers, weights in (("a", 2, b"one"), ("b", 2, b"two"), ("c", 3, b"one"), ("d", 2, b"larger")):
        folder = tmp_path / name
        folder.mkdir()
        for path in qwen_folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
        (folder / "model.safetensors").write_bytes(weights)
        hashes.append((await load(str(folder))).model_hash)
    assert hashes[0] == hashes[1]  # weights are not read: of their size alone
    assert len({*hashes}) == 3
    emulated = (await load("emulated")).model_hash
    assert emulated not in {"", *hashes}


async def test_a_template_in_the_tokenizer_config_is_used(qwen_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((qwen_folder / "tokenizer.json").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": builtin.TEMPLATE, "eos_token": "<|endoftext|>"}))
    assert (await load(str(tmp_path))).stop_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    ("template", "problem"), [(None, "no chat template"), ([{"name": "default"}], "several chat templates")]
)
async def test_a_model_without_one_template_names_the_remedy(
    qwen_folder: Path, tmp_path: Path, template: object, problem: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((qwen_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelError, match=f"{problem}; set `template`"):
        await load(str(tmp_path))


async def test_unreadable_files_are_named(qwen_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="set `template` to a readable file"):
        await load(str(qwen_folder), tmp_path / "nothing.jinja")
    (tmp_path / "tokenizer.json").write_bytes((qwen_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not a JSON object"):
        await load(str(tmp_path))


TURN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


EACH = f"{{% for message in messages %}}{TURN}{{% endfor %}}{GENERATION}"
COUNTED_BACK = f"{{% for message in messages %}}{{{{ loop.revindex }}}}{TURN}{{% endfor %}}{GENERATION}"
UNCALLED = (
    "{{ raise_exception('no call') if messages[2] is defined and messages[2].role == 'tool'"
    " and not messages[1].tool_calls }}"
)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (f"{{% for message in messages %}}{{{{ loop.index }}}}{TURN}{{% endfor %}}", "the text after"),
        (f"{{% for message in messages|reverse %}}{TURN}{{% endfor %}}{GENERATION}", "the text after"),
        (f"{{% for message in messages[:2] %}}{TURN}{{% endfor %}}{GENERATION}", "messages are not shown"),
        ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}", "special token"),
        (GENERATION, "exactly once"),
        (EACH + EACH, "exactly once"),
        (UNCALLED + EACH, "no call"),
        (COUNTED_BACK, "earlier messages"),
    ],
)
def test_a_template_that_cannot_be_continued_is_found(template: str, problem: str) -> None:
    chat = make(template, qwen2_5.FAMILY, end_ids=(258,))
    assert not chat.appendable
    assert problem in chat.unsafe[0].reason
    assert "rendered in full" in chat.unsafe[0].remedy


def test_a_model_that_never_ends_is_refused() -> None:
    with pytest.raises(ModelError, match="no token that ends an answer"):
        make("{{ raise_exception('no') }}")


def test_a_template_may_refuse_roles() -> None:
    no_system = "{{ raise_exception('no system') if messages[0].role == 'system' else '' }}"
    chat = make(no_system + EACH)
    assert chat.appendable
    assert {verdict.finding for verdict in chat.verdicts} == {Finding.EQUAL, Finding.REFUSED}


async def test_tools_are_refused_where_their_syntax_is_unknown() -> None:
    plain = make(EACH)
    with pytest.raises(InvalidTool, match="no known tool-call syntax"):
        await plain.render_first("", TOOLS, [user("Hi.")])
    with pytest.raises(InvalidTool, match="no known tool-call syntax"):
        await plain.render_continuation([user("Hi.")], TOOLS, closed=True)


@pytest.mark.parametrize(("count", "aside"), [(9, False), (2000, True)])
async def test_a_long_conversation_is_rendered_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, count: int, aside: bool
) -> None:
    model, threads = make(EACH, plain.FAMILY), set[int]()
    render = ChatTemplate.render

    def seen(self: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool], prompt: bool) -> str:
        threads.add(threading.get_ident())
        return render(self, messages, tools, prompt)

    monkeypatch.setattr(ChatTemplate, "render", seen)
    await model.render_first("", (), [user("?")] * count)
    assert (threading.get_ident() in threads) is not aside


async def test_a_generation_prompt_that_opens_the_reasoning_is_seen() -> None:
    thinking = make(EACH + "<think>\n", plain.REASONING)
    parser = thinking.parser(())
    parser.feed(thinking.tokenizer.encode_now("hm</think>Yes."))
    message = parser.finish().message
    assert (message.reasoning, message.content) == ("hm", "Yes.")


@pytest.mark.parametrize(
    ("signs", "family"),
    [
        (Signs("plain"), plain.FAMILY),
        (Signs("<think>"), plain.REASONING),
        (Signs("<tool_call>{"), qwen2_5.FAMILY),
        (Signs("<tool_call>{ <think>"), qwen3.FAMILY),
        (Signs("<tool_call><function=x>"), qwen3_coder.FAMILY),
        (Signs("<tool_call><function=x><think>"), qwen3_coder.REASONING),
        (Signs("<|start_header_id|>"), plain.FAMILY),
        (Signs('<|start_header_id|> "parameters"'), llama3.FAMILY),
        (Signs("<|start|>assistant<|channel|>"), gpt_oss.FAMILY),
        (Signs("", "gpt_oss"), gpt_oss.FAMILY),
    ],
)
def test_families_are_told_by_their_signs(signs: Signs, family: Family) -> None:
    assert detect(signs) is family
