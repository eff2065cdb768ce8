"""The configuration: one place for each default, and every file of conf/ composes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mint.commands.training.train import main
from mint.jobs.compose import Composed, compose_jobs
from mint.jobs.job import check, load_adapter, make_config
from mint.jobs.settings import CONFIG_GROUPS, defaults
from mint.jobs.task import TaskReference
from mint.rl import ConfigError, RLConfig
from tests.needs import need_gym

from .conftest import CONF, ROOT

FILES = sorted(path for path in CONF.glob("*/*.yaml"))
NEEDED = {  # what a file leaves to the user
    "task/gsm8k": ["task.arguments.task=questions.jsonl"],
    "task/jsonl": ["task.arguments.file=questions.jsonl"],
    "task/custom": ["task.adapter=mint.rl.task:RLAdapter"],
    "experiment/gsm8k": ["task.arguments.file=questions.jsonl"],
    "experiment/chat": ["task.arguments.judge=some/model"],
}


def composed(*overrides: str) -> Composed:
    (job,) = compose_jobs(CONF, overrides)
    return job


def set_in(file: Path) -> Iterator[tuple[str, str, Any]]:
    content = yaml.safe_load(file.read_text()) or {}
    content.pop("defaults", None)
    for group, values in content.items():
        for name, value in values.items():
            yield group, name, value


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_every_setting_of_the_loop_is_in_exactly_one_group() -> None:
    places = Counter(name for group in CONFIG_GROUPS.values() for name in group.model_fields)
    assert set(places.values()) == {1}
    added = {"adapter", "arguments", "reward_function", "samples"}
    assert places.keys() - added == RLConfig.model_fields.keys()


def test_without_a_file_that_says_otherwise_the_defaults_are_those_of_the_loop() -> None:
    different = make_config(composed().job).differences(RLConfig().as_dict())
    said = {name for file in FILES for _, name, _ in set_in(file)}
    assert set(different) <= said


# an experiment says all that its result depends on
@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.parent.name != "experiment"],
    ids=lambda file: f"{file.parent.name}/{file.stem}",
)
def test_a_file_holds_only_what_differs_from_the_defaults(file: Path) -> None:
    known = defaults()
    same = [(g, n) for g, n, value in set_in(file) if value == known[g][n]]
    # the rewards page names this file as the place of the setting
    assert same == (
        [("training", "reward_function")] if file.match("training/default.yaml") else []
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_file_composes_to_a_job_that_could_be_run(file: Path) -> None:
    group, name = file.parent.name, file.stem
    check(composed(f"{group}={name}", *NEEDED.get(f"{group}/{name}", [])).job)


def test_the_file_of_the_rewards_page_is_where_the_page_says() -> None:
    text = (CONF / "training" / "default.yaml").read_text()
    assert "\ntraining:\n  reward_function:" in text


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.reward_function", "check_answer"),
        ("training.steps", 7),
        ("task.arguments.task", "gym:chain_sum"),
        ("training.reward_weights.format", 0.5),
    ],
)
def test_a_setting_is_overridden_with_and_without_plus(plus: str, key: str, value: Any) -> None:
    found: Any = composed(f"{plus}{key}={value}").job
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize("plus", ["", "+"])
def test_an_experiment_overrides_the_groups_and_the_command_line_overrides_both(
    plus: str,
) -> None:
    job = composed(f"{plus}experiment=quick_test", "training.steps=9").job
    assert job["model"]["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (job["training"]["steps"], job["training"]["batch_size"]) == (9, 4)


def test_of_two_overrides_the_last_wins() -> None:
    job = composed("task=gym", "training.steps=3", "task=code", "+training.steps=4").job
    assert "code_execution" in job["task"]["adapter"]
    assert job["training"]["steps"] == 4


def test_the_environment_sets_defaults_and_files_go_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINT_BASE_MODEL", "some/model")
    monkeypatch.setenv("MINT_RL_STEPS", "11")
    assert composed().job["model"]["base_model"] == "some/model"
    assert composed().job["training"]["steps"] == 11
    assert composed("model=smollm2").job["model"]["base_model"].endswith("SmolLM2-135M-Instruct")


def test_cfg_job_prints_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "task=tools", "training.steps=3"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert {group: set(values) for group, values in printed.items()} == {
        group: set(values) for group, values in defaults().items()
    }
    assert (printed["training"]["steps"], printed["sampling"]["max_turns"]) == (3, 4)


def test_help_names_every_group_file_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(file.stem in printed for file in FILES)
    assert all(f"{g}.{name}=" in printed for g, own in defaults().items() for name in own)


def test_a_sweep_is_every_combination_of_values() -> None:
    overrides = ["sampling.temperature=0.7,1.0", "training.seed=range(0,2)", "training.steps=3"]
    jobs = compose_jobs(CONF, overrides, sweep=True)
    assert [job.swept for job in jobs] == [
        ("sampling.temperature=0.7", "training.seed=0"),
        ("sampling.temperature=0.7", "training.seed=1"),
        ("sampling.temperature=1.0", "training.seed=0"),
        ("sampling.temperature=1.0", "training.seed=1"),
    ]
    assert {job.job["training"]["steps"] for job in jobs} == {3}


def test_a_task_is_made_of_its_reference_and_arguments() -> None:
    need_gym()
    adapter = load_adapter(composed("task.arguments.task=gym:chain_sum", "task=gym").job)
    assert type(adapter).__name__ == "VerifiableMathAdapter"
    assert adapter.task == "gym:chain_sum"


REFUSED = r"task\.arguments: VerifiableMathAdapter rejects them"


@pytest.mark.parametrize(
    ("argument", "told"),
    [("no_such.jsonl", "There is no file"), ("null", REFUSED), ("5", REFUSED)],
)
def test_what_a_task_refuses_is_a_mistake_in_its_arguments(argument: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_adapter(composed("task=gsm8k", f"task.arguments.task={argument}").job)


MADE = """
from mint.rl import RLAdapter

if True:
    class Inner(RLAdapter):
        pass

Named = type("Named", (RLAdapter,), {})
for Looped in (Inner,):
    pass
limit = 5

def make():
    return Named
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "broken.py").write_text("class Broken(:\n")


@pytest.mark.parametrize("name", ["Inner", "Named", "Looped"])
def test_a_class_may_be_created_in_any_way(name: str, made: None) -> None:
    reference = TaskReference("made.py", name)
    reference.check({})
    assert isinstance(reference.load(), type)


@pytest.mark.parametrize("name", ["limit", "make", "Nothing"])
def test_a_name_that_is_not_a_class_is_not_a_task(name: str, made: None) -> None:
    with pytest.raises(ConfigError, match=f"made.py has no class {name}"):
        TaskReference("made.py", name).load()


def test_a_file_that_is_not_python_is_named_with_the_line(made: None) -> None:
    with pytest.raises(ConfigError, match=r"broken\.py is not Python: .* line 1\)"):
        TaskReference("broken.py", "Broken").check({})


def test_cfg_job_of_a_sweep_is_one_document_for_each_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-m", "--cfg", "job", "training.seed=0,1"]) == 0
    printed = capsys.readouterr().out
    assert [job["training"]["seed"] for job in yaml.safe_load_all(printed)] == [0, 1]
    assert "--- # training.seed=1\n" in printed
