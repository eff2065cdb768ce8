"""A wrong key or value: one message that names the closest right one, before anything is loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mint.commands.training.train import main

from .conftest import ROOT

TOOLS = "demos/rl/adapters/tool_use.py"
MISTAKES: dict[str, tuple[list[str], str]] = {
    "setting": (["training.stpes=3"], "training.stpes. Did you mean training.steps?"),
    "setting with plus": (["+training.stpes=3"], "Did you mean training.steps?"),
    "other group": (["training.temperature=1"], "It is sampling.temperature."),
    "no group": (["steps=3"], "It is training.steps."),
    "short name": (["lr=1e-4"], "It is training.learning_rate."),
    "group": (["trainig.steps=3"], "It is training.steps."),
    "group of files": (["expermient=quick_test"], "Did you mean experiment=...?"),
    "file of a group": (
        ["task=arithmatic"],
        "There is no task=arithmatic. Did you mean 'arithmetic'? The files in conf/task are: ",
    ),
    "experiment": (["+experiment=quick_tst"], "Did you mean 'quick_test'?"),
    "type": (["sampling.temperature=hot"], "sampling.temperature is 'hot'; it must be a number."),
    "range": (["+training.steps=0"], "training.steps is 0; it must be 1 or more."),
    "choice": (["algorithm.loss_fn=pp0"], "Did you mean 'ppo'?"),
    "null": (["training.steps=null"], "training.steps is None; it must be an integer."),
    "together": (["sampling.temperature=0"], "temperature is 0"),
    "below a value": (["training.steps.x=3"], "training.steps is a single value"),
    "below a list": (["training.betas.x=3"], "training.betas is a single value"),
    "one word for a list": (["training.stop_on=no_signal"], "'training.stop_on=[no_signal]'"),
    "mapping": (["training.reward_weights=3"], "it must be names with values"),
    "list for a mapping": (["task.arguments=[a]"], "Cannot merge DictConfig with ListConfig"),
    "weight": (["training.reward_weights.a=b"], "training.reward_weights.a is 'b'; it must be a"),
    "no weights": (["training.reward_weights={}"], "training.reward_weights is empty"),
    "reward": (["training.reward_function=chek_answer"], "Did you mean check_answer"),
    "reward's file": (["training.reward_function=no.py:f"], "There is no file no.py"),
    "reward's module": (
        ["training.reward_function=mint.rewards.answers.checks:chek_answer"],
        "Did you mean check_answer",
    ),
    "reward's kind": (["training.reward_function=os.path:join"], "cannot be a reward"),
    "reward's place": (["training.reward_function=:f"], "is not a function"),
    "reward's dots": (["training.reward_function=."], "is not a function"),
    "reward of an environment": (
        ["task=tools", "training.reward_function=check_answer"],
        "ToolUseEnvironment is an environment",
    ),
    "task's class": (
        [f"task.adapter={TOOLS}:ToolEnvironment"],
        "Did you mean 'ToolUseEnvironment'?",
    ),
    "task's file": (["task.adapter=no.py:Task"], "there is no file no.py"),
    "task's module": (["task.adapter=no.such:Task"], "there is no module no.such"),
    "task's package": (["task.adapter=demos:Task"], "demos has no class Task"),
    "task's form": (["task.adapter=ToolUse"], "is not a class"),
    "task's argument": (["task.arguments.tsk=1"], "Did you mean 'task'?"),
    "task's missing argument": (["task=gsm8k"], "task.arguments.task is not set"),
    "task's required argument": (
        ["task=custom", "task.adapter=demos/rl/adapters/preference_chat.py:PreferenceChatAdapter"],
        "Type: task.arguments.judge=...",
    ),
    "missing variable": (["+experiment=chat"], "Type: export MINT_JUDGE_MODEL=... or task.arg"),
    "missing task": (["task=custom"], "task.adapter is not set"),
    "several values": (["training.seed=0,1"], "`mint train --multirun` runs each.\n"),
    "several texts": (["sampling.stop=a,b"], "A list is sampling.stop=[a,b]"),
    "one word for numbers": (["training.betas=x"], "it must be a list of numbers.\n"),
    "several files": (["task=chat,gym"], "`mint train --multirun` runs each.\n"),
    "no values": (["-m", "training.seed=glob(*)"], "training.seed=glob(*) has no values"),
    "a job of a sweep": (["-m", "training.steps=1,0"], "training.steps is 0"),
    "folders of a sweep": (["-m", "logging.run_dir=a,b"], "set a single value"),
    "no value": (["training.steps"], "cannot be parsed"),
    "no name": (["=3"], "cannot be parsed"),
    "shown": (["--cfg", "job", "training.steps=x"], "training.steps is 'x'; it must be an integer"),
    "bracket": (["sampling.stop=[a"], "cannot be parsed"),
    "deletion": (["~training.steps"], "a setting cannot be removed"),
    "hydra's own": (["hydra.run.dir=x"], "The run directory is logging.run_dir."),
    "option": (["--mutirun"], "unrecognized arguments: --mutirun"),
    "folder": (["--config-dir", "nowhere"], "There is no YAML file in nowhere"),
}
RUN_ALL = """
import contextlib, io, json, sys
from mint.commands.training.train import main

heavy = {"torch", "tinker", "transformers"}
for name, arguments in json.loads(sys.argv[1]).items():
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([name, code, said.getvalue(), sorted(heavy & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def endings() -> dict[str, list[Any]]:
    """The end of every mistaken command, all in one fresh process."""
    wrong = json.dumps({name: arguments for name, (arguments, _) in MISTAKES.items()})
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, wrong],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MINT", "TINKER"))},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: rest for name, *rest in rows}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_before_anything_is_loaded(
    name: str, endings: dict[str, list[Any]]
) -> None:
    code, said, loaded = endings[name]
    assert MISTAKES[name][1] in said
    assert (code, loaded) == (2, [])
    assert "Traceback" not in said


FILES: dict[str, tuple[str, str, str]] = {
    "no package": (
        "training/default.yaml",
        "training:\n  reward_function: check_answer\n",
        "A file of conf/training that sets training must begin with the line `# @package _global_`",
    ),
    "an experiment without package": (
        "experiment/quick_test.yaml",
        "training:\n  steps: 3\n",
        "A file of conf/experiment that sets training must begin with the line",
    ),
    "an empty group": (
        "training/default.yaml",
        "# @package _global_\ntraining:\n",
        "training is None; it must be settings, as in training.",
    ),
    "no settings": (
        "config.yaml",
        "training: {steps: 3}\n",
        "config.yaml must have `settings` as the first of its defaults",
    ),
    "no YAML": ("training/default.yaml", "training: {steps: 3", "expected ',' or '}'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_right_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, told = FILES[name]
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / "conf", conf)
    (conf / file).write_text(content)
    typed = ["+experiment=quick_test"] if file.startswith("experiment") else []
    assert main(["--config-dir", str(conf), *typed]) == 2
    assert told in capsys.readouterr().err
