"""A code agent that reads and edits files, runs tests in the sandbox, and must pass hidden tests.

    python demos/rl/code_agent.py

Each task is a small project with a defect. The agent sees the files and some tests. Its reward
comes from other tests, so that special-casing the visible ones does not help. The project is a
dict, and its code runs only inside the sandbox.

The reward is per turn: the change in the share of hidden tests that pass, minus a small cost.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Any

from rl_core import RLConfig, run_grpo

from mint.rewards import CodeReward
from mint.rewards.code.tests import read_test
from mint.rl import Chat, Tool, ToolError, per_turn, run_tools, tool

TURN_COST = 0.01
RULES = (
    "You repair a small Python project. Look at its files, change them with write_file, and run "
    "the tests with run_tests. Stop without a call when all tests pass."
)


@dataclass(frozen=True)
class Repair:
    """A project with a defect, the tests that the agent sees, and the hidden tests."""

    name: str
    files: dict[str, str]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]


TASKS = [
    Repair(
        "median",
        {
            "ordering.py": "def ordered(values):\n    return list(values)\n",
            "stats.py": (
                "from ordering import ordered\n\n\n"
                "def median(values):\n"
                "    found = ordered(values)\n"
                "    return found[len(found) // 2]\n"
            ),
        },
        ("assert median([3, 1, 2]) == 2",),
        (
            "assert median([9, 1, 5]) == 5",
            "assert median([4, 1, 3, 2]) in (2, 2.5, 3)",
            "assert ordered([2, 1]) == [1, 2]",
        ),
    ),
    Repair(
        "words",
        {"words.py": "def count(text):\n    return len(text.split(' '))\n"},
        ("assert count('a  b') == 2",),
        (
            "assert count('') == 0",
            "assert count(' a\\tb\\n') == 2",
            "assert count('one two three') == 3",
        ),
    ),
]


def as_program(files: dict[str, str], modules: list[str]) -> str:
    """Return a program that writes the project to a folder of the sandbox, and imports all names
    of some modules."""
    imports = "".join(f"from {module} import *\n" for module in modules)
    return (
        "import json, sys, tempfile\nfrom pathlib import Path\n"
        "_folder = Path(tempfile.mkdtemp())\n"
        f"for _name, _text in json.loads({json.dumps(json.dumps(files))}).items():\n"
        "    (_folder / _name).write_text(_text)\n"
        f"sys.path.insert(0, str(_folder))\n{imports}"
    )


class Project:
    """The files of one rollout, and the tools to work on them."""

    def __init__(self, task: Repair, runner: CodeReward) -> None:
        self.task = task
        self.files = dict(task.files)
        self.runner = runner

    def passed(self, tests: tuple[str, ...]) -> list[Any]:
        """Run tests on the files as they are now."""
        modules = [name.removesuffix(".py") for name in self.task.files]
        program = as_program(self.files, modules)
        return self.runner.run(program, [read_test(test) for test in tests])

    def score(self) -> float:
        """Return the share of hidden tests that pass."""
        results = self.passed(self.task.hidden)
        return sum(result.passed for result in results) / len(results)

    def tools(self) -> list[Tool]:
        """Return the tools of this rollout, which work on its files only."""

        def list_files() -> str:
            """List the files of the project."""
            return "\n".join(sorted(self.files))

        def read_file(name: str) -> str:
            """Read a file."""
            if name not in self.files:
                raise ToolError(f"there is no file {name!r}; there are {', '.join(self.files)}")
            return self.files[name]

        def write_file(name: str, content: str) -> str:
            """Replace a file, or make a new one."""
            if "/" in name or not name.endswith(".py"):
                raise ToolError("a file is named like module.py, without folders")
            self.files[name] = content
            return f"wrote {len(content)} characters to {name}"

        def run_tests() -> str:
            """Run the tests of the project."""
            results = self.passed(self.task.shown)
            failed = [f"failed: {result.error}" for result in results if not result.passed]
            return "\n".join(failed) or "all tests pass"

        return [tool(each) for each in (list_files, read_file, write_file, run_tests)]


class CodeAgent:
    """Repairs projects."""

    name = "code-agent"

    def __init__(self) -> None:
        self.runner = CodeReward(tests=["assert True"])

    def build_dataset(self) -> list[Repair]:
        return list(TASKS)

    def identity(self, task: Repair) -> str:
        return task.name

    async def rollout(self, task: Repair, chat: Chat) -> Any:
        project = Project(task, self.runner)
        tools = project.tools()
        chat.use_tools(tools)
        chat.system(RULES)
        chat.user("The project's test fails:\n\n" + "\n".join(task.shown))
        before, rewards = await asyncio.to_thread(project.score), []
        while chat.turns_left:
            reply = await chat.reply()
            for result in await run_tools(tools, reply.tool_calls):
                chat.tool(result)
            after = await asyncio.to_thread(project.score)
            rewards.append(after - before - TURN_COST)
            before = after
            if not reply.tool_calls:
                break
        return per_turn(rewards, {"solved": float(before == 1.0)})


DEFAULTS = {"MINT_RL_MAX_TOKENS": "256", "MINT_RL_MAX_TURNS": "6", "MINT_RL_BATCH": "2"}


def main() -> str:
    return run_grpo(CodeAgent(), RLConfig.from_env({**DEFAULTS, **os.environ}))


if __name__ == "__main__":
    main()
