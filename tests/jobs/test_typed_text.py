"""Strings from a shell: an escaped newline becomes one, however it is quoted."""

from __future__ import annotations

import shlex

import pytest

from mint.jobs.compose import compose_jobs
from mint.rl import RLConfig

from .conftest import CONF

LINES = {  # as typed in a shell, and what it means
    r"""'sampling.stop=["\n"]'""": ["\n"],
    r"""sampling.stop='["\n"]'""": ["\n"],
    r"""sampling.stop=[\"\\n\"]""": ["\n"],
    r"""sampling.stop=["\n"]""": ["\n"],
    r"""sampling.stop="['\n']" """: ["\n"],
    r"""sampling.stop='[\n]'""": ["\n"],
    r"""sampling.stop="\n" """: ["\n"],
    r"""sampling.stop='\n'""": ["\n"],
    r"""'sampling.stop="\n"'""": ["\n"],
    r"""sampling.stop=\\n""": ["\n"],
    "sampling.stop='\n'": ["\n"],
    "'sampling.stop=[\"\n\"]'": ["\n"],
    "'sampling.stop=[\n]'": ["\n"],
    r"""+sampling.stop='\n\n'""": ["\n\n"],
    r"""'sampling.stop=["\nQ:", "\t"]'""": ["\nQ:", "\t"],
    r"""sampling.stop='["\\n"]'""": ["\\n"],
    "'sampling.stop=</answer>'": ["</answer>"],
    '\'sampling.stop=["</answer>", "###"]\'': ["</answer>", "###"],
    "'sampling.stop=###'": ["###"],
    "sampling.stop=Q:": ["Q:"],
    "sampling.stop=[]": [],
}


@pytest.mark.parametrize("line", LINES)
def test_a_stop_is_what_was_typed(line: str) -> None:
    (composed,) = compose_jobs(CONF, shlex.split(line))
    assert composed.job["sampling"]["stop"] == LINES[line]


VARIABLES = {
    r"\n": ("\n",),
    "\n": ("\n",),
    r"\n\n": ("\n\n",),
    r'"\n"': ("\n",),
    r"'\n'": ("\n",),
    r'["\n"]': ("\n",),
    '["\n"]': ("\n",),
    r"['\n']": ("\n",),
    r"[\n]": ("\n",),
    r"\n,Q:": ("\n", "Q:"),
    r'["\n", ","]': ("\n", ","),
    r"\\n": ("\\n",),
    "</answer>": ("</answer>",),
}


@pytest.mark.parametrize("value", VARIABLES)
def test_a_stop_in_a_variable_is_what_was_written(value: str) -> None:
    assert RLConfig.from_env({"MINT_RL_STOP": value}).stop == VARIABLES[value]


@pytest.mark.parametrize(
    "line",
    [
        r"""task.arguments.template="Q: {question}\nA:" """,
        r"""'task.arguments.template="Q: {question}\nA:"'""",
        r"""task.arguments.template='Q: {question}\nA:'""",
        "'task.arguments.template=Q: {question}\nA:'",
        r"""'task.arguments={template: "Q: {question}\nA:", file: x}'""",
    ],
)
def test_a_template_may_have_new_lines(line: str) -> None:
    typed = ["task=jsonl", "task.arguments.file=x", *shlex.split(line)]
    (composed,) = compose_jobs(CONF, typed)
    assert composed.job["task"]["arguments"]["template"] == "Q: {question}\nA:"


def test_backslashes_of_a_formula_stay() -> None:
    typed = ["task=jsonl", "task.arguments.file=x", r"task.arguments.system_prompt=Use \boxed{4}."]
    (composed,) = compose_jobs(CONF, typed)
    assert composed.job["task"]["arguments"]["system_prompt"] == r"Use \boxed{4}."


def test_a_file_of_a_configuration_is_taken_as_yaml_reads_it() -> None:
    (composed,) = compose_jobs(CONF, ["task=arithmetic"])
    assert composed.job["sampling"]["stop"] == ["\n"]
