"""The first hour of a new user: an installed wheel, a clean folder, and data of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mint.watch.directory.recorder import METRICS, read_rows
from tests.installed import Installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REWARD = '''
import time
from pathlib import Path

HOLD, WAITING, METRICS = Path("hold"), Path("waiting"), Path("runs/first/metrics.jsonl")


def share_of_ascii(response, prompt, metadata):
    """Pay for plain characters: half of what a random model writes.

    After two steps it waits for as long as the file `hold` is there.
    """
    while HOLD.exists() and METRICS.exists() and len(METRICS.read_text().splitlines()) >= 2:
        WAITING.touch()
        time.sleep(0.02)
    assert metadata["answer"]
    return sum(character < "\\x80" for character in response) / max(1, len(response))
'''
ENVIRONMENT = '''
import random

from mint.rewards import Score
from mint.rl import rehearse, run_tools, tool

PRICES = {"apple": 3, "bread": 7, "tea": 6}


@tool
def look_up(name: str) -> str:
    """Find the price of one piece of something."""
    return f"One {name} costs {PRICES[name]} coins."


class Shop:
    def build_dataset(self):
        return [{"name": name, "count": n} for name in sorted(PRICES) for n in range(2, 6)]

    async def rollout(self, task, chat):
        chat.use_tools([look_up])
        chat.user(f"What do {task['count']} pieces of {task['name']} cost?")
        reply = await chat.reply()
        calls = 0
        while reply.tool_calls and chat.turns_left:
            for result in await run_tools([look_up], reply.tool_calls):
                chat.tool(result)
                calls += 1
            reply = await chat.reply()
        right = float(str(task["count"] * PRICES[task["name"]]) in reply.text)
        plain = sum(character < "\\x80" for character in reply.text) / max(1, len(reply.text))
        return Score(right + 0.1 * plain, {"right": right, "plain": 0.1 * plain, "calls": calls})


if __name__ == "__main__":
    call = '<tool_call>{"name": "look_up", "arguments": {"name": "tea"}}</tool_call>'
    played = rehearse(Shop(), {"name": "tea", "count": 4}, [call, "They cost 24 coins."])
    print([m["content"] for m in played.messages if m["role"] == "tool"], played.reward)
'''
SAMPLE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokens = tokenizer("What is the capital of France?", return_tensors="pt")
print(model.generate(**tokens, max_new_tokens=4).shape)
"""
SMALL = (
    "training.batch_size=2",
    "training.learning_rate=0.01",
    "training.checkpoint_every=1",
    "model.rank=4",
    "sampling.group_size=4",
    "sampling.max_tokens=6",
    "sampling.temperature=1.0",
    "evaluation.holdout_size=2",
    "logging.run_dir=runs/first",
)
STEPS = 5


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a process makes a file; a process that ends before fails the test."""
    while not file.exists():
        if process.poll() is not None:
            out, errors = process.communicate()
            pytest.fail(f"The command ended too early.\n{out}\n{errors}")
        time.sleep(0.05)


def steps_in(folder: Path) -> list[int]:
    return [row["step"] for row in read_rows(folder / "runs/first" / METRICS) if row["step"]]


def test_own_data_an_interruption_and_what_came_out(installed: Installed, tmp_path: Path) -> None:
    countries = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Peru": "Lima"}
    rows = [
        {"question": f"What is the capital of {name}? ({n})", "answer": city}
        for name, city in countries.items()
        for n in range(4)
    ]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own_reward.py").write_text(REWARD)
    command = [
        *("mint", "train", "task=jsonl", "task.arguments.file=capitals.jsonl"),
        "task.arguments.prompt_column=question",
        "training.reward_function=own_reward.py:share_of_ascii",
        f"model.base_model={installed.model}",
        f"training.steps={STEPS}",
        *SMALL,
    ]

    # Ctrl-C while a step's answers are scored
    (tmp_path / "hold").touch()
    process = installed.start(tmp_path, *command)
    wait_for(tmp_path / "waiting", process)
    process.send_signal(signal.SIGINT)
    (tmp_path / "hold").unlink()
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 130, f"{out}\n{errors}"
    assert "Interrupted" in out + errors
    assert "Traceback" not in errors
    assert len(steps_in(tmp_path)) < STEPS

    # the same command continues
    out = installed.run(tmp_path, *command)
    assert "Saved: tinker://" in out
    assert steps_in(tmp_path) == list(range(1, STEPS + 1))

    # what came out: a sample, an adapter, a whole model
    question = "What is the capital of Peru? (1)"
    sampled = installed.run(
        tmp_path, "mint", "sample", "-m", "runs/first", question, "--max-tokens", "4", "--json"
    )
    assert json.loads(sampled)
    installed.run(tmp_path, "mint", "export", "runs/first", "--to", "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    installed.run(tmp_path, "mint", "export", "runs/first", "--to", "merged", "--merge")
    (tmp_path / "sample.py").write_text(SAMPLE)
    assert "torch.Size([1, " in installed.run(tmp_path, "python", "sample.py", "merged")


def test_an_own_environment_with_a_tool(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ENVIRONMENT)
    rehearsed = installed.run(tmp_path, "python", "shop.py")
    assert rehearsed.startswith("['One tea costs 6 coins.'] 1.")

    out = installed.run(
        tmp_path,
        *("mint", "train", "task=custom", "task.adapter=shop.py:Shop", "training.steps=2"),
        *(f"model.base_model={installed.model}", "sampling.max_turns=3", *SMALL),
    )
    assert "Saved: tinker://" in out
    rows = [row for row in read_rows(tmp_path / "runs/first" / METRICS) if row["step"]]
    assert [row["reward/failures"] for row in rows] == [0, 0]
    assert all("component/plain" in row for row in rows)
