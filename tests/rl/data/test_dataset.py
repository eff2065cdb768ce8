"""Own data as a task: prompts, examples, rewards, and rows that cannot be used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import ConfigError, DataError, DatasetTask, RLConfig, run_grpo
from mint.rl.rollouts.scoring import score_responses
from mint.watch.directory.reader import open_run
from tests.tiny import build_tokenizer

TOKENIZER = build_tokenizer()
SUMS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "level": n} for n in range(6)]
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows to a JSON-lines file, and returns its path."""

    def make(rows: list[Any], name: str = "rows.jsonl") -> str:
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return str(tmp_path / name)

    return make


def prompt(task: DatasetTask, number: int = 0) -> str:
    return str(TOKENIZER.decode(task.make_prompt(task.problems[number], TOKENIZER)))


def chat(*messages: tuple[str, str]) -> str:
    shown = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages]
    return "".join(shown) + "<|im_start|>assistant\n"


def score(task: DatasetTask, response: str, number: int = 0) -> Any:
    problem = task.problems[number]
    (value,) = asyncio.run(score_responses(task, [response], problem))
    return value


def test_a_prompt_goes_through_the_chat_template(write: Write) -> None:
    task = DatasetTask(write(SUMS))
    assert prompt(task) == chat(("user", "What is 0 + 1?"))
    task = DatasetTask(write(SUMS), system_prompt="Be short.")
    assert prompt(task) == chat(("system", "Be short."), ("user", "What is 0 + 1?"))


def test_a_row_may_have_a_system_prompt_of_its_own(write: Write) -> None:
    rows = [{**SUMS[0], "system": "Add."}, {**SUMS[1], "system": None}]
    task = DatasetTask(write(rows), system_column="system", system_prompt="Be short.")
    assert prompt(task, 0) == chat(("system", "Add."), ("user", "What is 0 + 1?"))
    assert prompt(task, 1) == chat(("system", "Be short."), ("user", "What is 1 + 1?"))


def test_a_template_is_filled_with_columns(write: Write) -> None:
    rows = [{"a": 3, "b": "{b}", "answer": "6"}]
    task = DatasetTask(write(rows), template="{{{a}}} + {b}:\nA:", chat=False)
    assert prompt(task) == "{3} + {b}:\nA:"
    assert task.problems[0].prompt == "{3} + {b}:\nA:"


def test_a_conversation_is_taken_from_a_column(write: Write) -> None:
    said = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ]
    task = DatasetTask(write([{"messages": said, "answer": 4}]), messages_column="messages")
    assert prompt(task) == chat(*((m["role"], m["content"]) for m in said))
    assert task.problems[0].prompt == "And 2 + 2?"
    task = DatasetTask(
        write([{"messages": json.dumps(said), "answer": 4}]), messages_column="messages"
    )
    assert prompt(task) == chat(*((m["role"], m["content"]) for m in said))


def test_examples_are_shown_and_not_trained_on(write: Write) -> None:
    rows = [*SUMS, SUMS[0]]
    task = DatasetTask(write(rows), shots=2, system_prompt="Add.")
    shown = [("user", "What is 0 + 1?"), ("assistant", "1")]
    shown += [("user", "What is 1 + 1?"), ("assistant", "2")]
    assert prompt(task) == chat(("system", "Add."), *shown, ("user", "What is 2 + 1?"))
    assert [p.metadata["level"] for p in task.build_dataset()] == [2, 3, 4, 5]
    task = DatasetTask(write(rows), template="Q: {prompt}\nA:", chat=False, shots=1)
    assert prompt(task) == "Q: What is 0 + 1?\nA: 1\n\nQ: What is 1 + 1?\nA:"


def test_the_default_reward_compares_with_the_gold_answer(write: Write) -> None:
    rows = [{"prompt": "?", "solution": "3 + 4 = 7 #### 7"}, {"prompt": "??", "solution": 8}]
    task = DatasetTask(write(rows), answer_column="solution")
    assert score(task, "It is 7.").total == 1.0
    assert score(task, "It is 9.").total == 0.0
    assert score(task, "8", number=1).total == 1.0


def test_a_reward_sees_every_column(write: Write) -> None:
    def by_level(response: str, prompt: str, metadata: dict[str, Any]) -> float:
        assert prompt == metadata["prompt"]
        return float(metadata["level"] + len(response) + int(metadata["answer"]))

    assert score(DatasetTask(write(SUMS), reward=by_level), "xx", number=3).total == 3 + 2 + 4

    async def by_name(response: str, level: int) -> float:
        return float(level)

    task = DatasetTask(write([{"prompt": "a", "level": 4}]), reward=by_name)
    assert score(task, "").total == 4.0

    def batched(completions: list[str], level: list[int], **rest: Any) -> list[float]:
        return [float(len(completions))] * len(completions)

    task = DatasetTask(write(SUMS), reward=batched)
    values = asyncio.run(score_responses(task, ["a", "b"], task.problems[0]))
    assert [value.total for value in values] == [2.0, 2.0]


def test_a_plain_reward_runs_in_threads_as_many_as_there_are_workers(write: Write) -> None:
    import threading

    pair, counting = threading.Barrier(2), threading.Lock()
    running: list[int] = [0]

    def where(response: str, prompt: str, metadata: dict[str, Any]) -> float:
        if threading.current_thread() is threading.main_thread():
            return 1.0
        with counting:
            running.append(running[-1] + 1)
        pair.wait(60)
        with counting:
            running.append(running[-1] - 1)
        return 0.0

    class Adapter:
        def compute_reward(self, response: str, sample: Any) -> float:
            return where(response, "", {})

    task = DatasetTask(write(SUMS), reward=where)
    assert score(task, "").total == 1.0

    async def in_workers() -> list[Any]:
        return await score_responses(Adapter(), ["a", "b", "c", "d"], None, asyncio.Semaphore(2))

    assert asyncio.run(in_workers()) == [0.0] * 4
    assert max(running) == 2

    async def in_a_group() -> list[Any]:
        both = [score_responses(task, [""], task.problems[0], asyncio.Semaphore(1)) for _ in "ab"]
        return [value for values in await asyncio.gather(*both) for value in values]

    assert [value.total for value in asyncio.run(in_a_group())] == [0.0, 0.0]


def test_a_reward_may_be_a_function_of_a_file(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def pay(response, level):\n    return level\n")
    task = DatasetTask(write(SUMS), reward=f"{tmp_path}/mine.py:pay")
    assert score(task, "", number=5).total == 5.0


def test_the_holdout_is_a_file_of_its_own(write: Write) -> None:
    held = [{"prompt": "What is 0 + 1?", "answer": "1"}, {"prompt": "9 + 1?", "answer": "10"}]
    task = DatasetTask(write(SUMS), shots=1, holdout_file=write(held, "held.jsonl"))
    assert [problem.prompt for problem in task.build_holdout()] == ["9 + 1?"]
    with pytest.raises(DataError, match="It needs the same columns as the training data"):
        DatasetTask(write(SUMS), holdout_file=write([{"prompt": "a"}], "held.jsonl"))
    with pytest.raises(DataError, match=r"Set task.arguments.holdout_file=FILE"):
        DatasetTask(write(SUMS), holdout_file="no.jsonl")


def test_other_data_is_another_task(write: Write) -> None:
    names = {
        DatasetTask(write(SUMS)).name,
        DatasetTask(write(SUMS[:5])).name,
        DatasetTask(write(SUMS), system_prompt="x").name,
        DatasetTask(write(SUMS), shots=1).name,
    }
    assert len(names) == 4
    assert DatasetTask(write(SUMS)).name in names


ROW = {"prompt": "a", "answer": "b"}
WRONG: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no prompt column": (
        [{"question": "a", "answer": "b"}],
        {},
        "has no column 'prompt'; its columns are question, answer. Set "
        "task.arguments.prompt_column=question (in a script: prompt_column='question').",
    ),
    "no such column": ([ROW], {"prompt_column": "promt"}, "prompt_column=prompt"),
    "only messages": ([{"messages": []}], {}, "task.arguments.messages_column=messages"),
    "no answers": ([{"prompt": "a", "solution": "b"}], {}, "answer_column=solution"),
    "no answer column": ([ROW], {"answer_column": "gold"}, "has no column 'gold'"),
    "no system column": ([ROW], {"system_column": "sys"}, "has no column 'sys'"),
    "a row without": ([ROW, {"answer": "b"}], {}, "line 2: there is no field 'prompt'"),
    "an empty prompt": ([ROW, {"prompt": " ", "answer": "b"}], {}, "line 2: the field 'prompt' is"),
    "a prompt of numbers": ([ROW, {"prompt": 3, "answer": "b"}], {}, "line 2: the field 'prompt'"),
    "a prompt of messages": (
        [{"prompt": [{"role": "user"}], "answer": "b"}],
        {},
        "If these are messages, set task.arguments.messages_column=prompt",
    ),
    "null for an answer": ([ROW, {"prompt": "a", "answer": None}], {}, "line 2: the field 'answer"),
    "an empty answer": ([ROW, {"prompt": "a", "answer": ""}], {}, "line 2: the field 'answer' is"),
    "a list of answers": ([{"prompt": "a", "answer": ["b"]}], {}, "must be a string or a number"),
    "an answer of NaN": ([{"prompt": "a", "answer": float("nan")}], {}, "no answer can be equal"),
    "a text of NaN": ([{"prompt": "a", "answer": "nan"}], {}, "no answer can be equal to"),
    "half a character": (
        [{"prompt": "a\ud800", "answer": "b"}],
        {},
        "a lone surrogate (half of a character) at position 2",
    ),
    "a template's column": ([ROW], {"template": "{promt}"}, "Did you mean 'prompt'?"),
    "a template's brace": ([ROW], {"template": "{prompt} \\boxed{}"}, "twice: {{ or }}"),
    "an open brace": ([ROW], {"template": "{prompt"}, "cannot be parsed"),
    "a template without": ([ROW], {"template": "Hello"}, "contains no column"),
    "a template with the answer": ([ROW], {"template": "{prompt} {answer}"}, "the gold answer"),
    "null in a template": (
        [{**ROW, "x": 1}, {**ROW, "x": None}],
        {"template": "{x}"},
        "line 2: the field 'x' is null",
    ),
    "template and column": (
        [ROW],
        {"template": "{prompt}", "prompt_column": "prompt"},
        "prompt_column and template are set",
    ),
    "messages as text": (
        [{"messages": "hi", "answer": "b"}],
        {"messages_column": "messages"},
        "is not JSON",
    ),
    "no messages": (
        [{"messages": [], "answer": "b"}],
        {"messages_column": "messages"},
        "is an empty list",
    ),
    "a role": (
        [{"messages": [{"role": "human", "content": "a"}], "answer": "b"}],
        {"messages_column": "messages"},
        "line 1: the field 'messages[1].role' is 'human'; it must be one of system, user",
    ),
    "other names of a message": (
        [{"messages": [{"from": "human", "value": "a"}], "answer": "b"}],
        {"messages_column": "messages"},
        "rename them to 'role' and 'content'",
    ),
    "content": (
        [{"messages": [{"role": "user", "content": 3}], "answer": "b"}],
        {"messages_column": "messages"},
        "the field 'messages[1].content' is a number",
    ),
    "an answer in the messages": (
        [{"messages": [{"role": "assistant", "content": "b"}], "answer": "b"}],
        {"messages_column": "messages"},
        "ends with an assistant message",
    ),
    "messages without chat": (
        [{"messages": []}],
        {"messages_column": "messages", "chat": False},
        "messages_column contains conversations",
    ),
    "too many examples": ([ROW], {"shots": 2}, "has 1 rows, too few for shots=2"),
    "only examples": ([ROW], {"shots": 1}, "all of them are used as examples"),
    "examples without answers": ([{"prompt": "a"}], {"shots": 1, "reward": len}, "cannot be"),
    "shots": ([ROW], {"shots": -1}, "shots is -1"),
    "chat": ([ROW], {"chat": "yes"}, "chat is 'yes'; it must be true or false"),
    "a column's name": ([ROW], {"prompt_column": 3}, "prompt_column is 3; it must be the name"),
    "an empty name": ([ROW], {"prompt_column": ""}, "prompt_column is empty"),
    "template arguments": ([ROW], {"chat_template_kwargs": "x"}, "it must be a mapping"),
    "a reward's name": ([ROW], {"reward": "chek_answer"}, "Did you mean check_answer"),
    "a reward's field": (
        [{**ROW, "tests": "x"}, ROW],
        {"reward": lambda response, tests: 1.0},
        "line 2: The reward has the parameter 'tests'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_named_with_file_row_and_field(name: str, write: Write) -> None:
    rows, arguments, told = WRONG[name]
    with pytest.raises(ConfigError) as error:
        DatasetTask(write(rows), **arguments)
    assert told in str(error.value)


def test_a_model_without_a_chat_template_needs_plain_text(write: Write) -> None:
    task = DatasetTask(write(SUMS))
    plain = build_tokenizer()
    plain.chat_template = None
    with pytest.raises(ConfigError, match=r"set task.arguments.chat=false"):
        task.make_prompt(task.problems[0], plain)
    plain.chat_template = "{{ raise_exception('no system') }}"
    with pytest.raises(ConfigError, match=r"line 1: the model's chat template rejects"):
        task.make_prompt(task.problems[0], plain)


def test_arguments_of_the_chat_template_reach_it(write: Write) -> None:
    task = DatasetTask(write(SUMS), chat_template_kwargs={"enable_thinking": False})
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ 'thinks' if enable_thinking else 'is quick' }}"
    assert tokenizer.decode(task.make_prompt(task.problems[0], tokenizer)) == "is quick"


def test_a_script_trains_on_own_data(
    write: Write,
    client: mint.ServiceClient,
    service: str,
    settings: Callable[..., RLConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MINT_BASE_URL", service)
    monkeypatch.setenv("MINT_API_KEY", "tml-rl")

    def low_bytes(response: str, prompt: str, metadata: dict[str, Any]) -> float:
        return sum(character < "\x80" for character in response) / max(1, len(response))

    task = DatasetTask(write(SUMS), reward=low_bytes)
    assert run_grpo(task, settings()).startswith("tinker://")
    seen = {row["prompt"] for row in open_run(tmp_path / "run").rollouts()}
    assert seen < {chat(("user", row["prompt"])) for row in SUMS}
