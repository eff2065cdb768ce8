"""The commands that talk to a service: ours, and those of the ``tinker`` package."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mint
import mint.watch
from mint.cli import main
from mint.rl.recording.directory import write_service
from tests.sdk.conftest import SEED_MODEL


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def command(
    served: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Runs ``mint ARGUMENTS`` as the entry point does, against the served service."""
    monkeypatch.setenv("MINT_BASE_URL", served)
    monkeypatch.setenv("MINT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["mint", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Said(int(end.value.code or 0), captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Saved:
    run: str
    training: str
    sampler: str


@pytest.fixture(scope="session")
def saved(served: str) -> Saved:
    """A run with a checkpoint of each kind."""
    client = mint.ServiceClient(base_url=served).create_lora_training_client(
        SEED_MODEL, rank=4, user_metadata={"purpose": "cli"}
    )
    training = client.save_state("first").result().path
    sampler = client.save_weights_for_sampler("second").result().path
    return Saved(client.model_id, training, sampler)


@pytest.fixture
def doomed(saved: Saved, served: str) -> str:
    """A checkpoint that a test may change and delete."""
    client = mint.ServiceClient(base_url=served)
    training = client.create_training_client_from_state(saved.training)
    return str(training.save_state("doomed").result().path)


# ---- reading -------------------------------------------------------------------------------------


def test_runs_are_listed_and_shown(command: Command, saved: Saved) -> None:
    table = command("runs", "list")
    assert table.code == 0
    assert saved.run in table.out
    assert SEED_MODEL in table.out
    assert saved.run in [run["training_run_id"] for run in command("runs", "list", "--json").json]
    shown = command("runs", "show", saved.run)
    assert saved.training in shown.out
    assert "purpose" in shown.out
    assert len(command("runs", "show", saved.run, "--json").json["checkpoints"]) == 2


def test_usage_is_shown_by_key_and_by_run(command: Command, saved: Saved) -> None:
    assert command("usage", "--since", "7d").out.splitlines()[1].startswith("local ")
    runs = {row["run_id"]: row for row in command("usage", "--by", "run", "--json").json}
    assert runs[saved.run]["checkpoints"] == 2
    assert saved.run in command("usage", "--by", "run").out


def test_old_checkpoints_are_pruned_by_rule(command: Command, served: str) -> None:
    client = mint.ServiceClient(base_url=served).create_lora_training_client(SEED_MODEL, rank=4)
    paths = [client.save_state(name).result().path for name in ("one", "best-two", "three", "four")]
    rule = ["checkpoints", "prune", "--run", client.model_id, "--keep-last", "1"]
    assert command(*rule, "--older-than", "1d", "--yes").out == "deleted 0 checkpoints, 0 B\n"
    nothing = command(*rule, "--older-than", "1d", "--dry-run").out
    assert nothing == "would delete 0 checkpoints, 0 B\n"
    shown = command(*rule, "--dry-run", "--keep", "best*", "--json").json
    assert [checkpoint["tinker_path"] for checkpoint in shown] == [paths[0], paths[2]]
    assert command(*rule, "--keep", "best*", "--yes").out.startswith("deleted 2 checkpoints, ")
    left = command("checkpoints", "list", "--run", client.model_id, "--json").json
    assert [checkpoint["tinker_path"] for checkpoint in left] == [paths[3], paths[1]]
    assert "Try it with --dry-run" in command("checkpoints", "prune").err


def test_states_of_runs_and_the_load_are_shown(command: Command, saved: Saved) -> None:
    assert " idle " in next(
        line for line in command("runs", "list").out.splitlines() if line.startswith(saved.run)
    )
    assert "idle" in command("runs", "show", saved.run).out
    load = command("runs", "status", "--json").json
    [engine] = load["engines"]
    assert engine["model"] == SEED_MODEL
    assert engine["cache_tokens_capacity"] > 0
    assert engine["runs_resident"] >= 1
    assert engine["process_bytes"] > 2**20
    shown = command("runs", "status").out
    assert "operations waiting" in shown
    assert f"of {engine['cache_tokens_capacity']:,.0f}" in shown


def test_a_run_is_unloaded(command: Command, served: str) -> None:
    client = mint.ServiceClient(base_url=served).create_lora_training_client(SEED_MODEL, rank=4)
    run = client.model_id
    assert command("runs", "unload", client.model_id, "--yes").code == 0
    with pytest.raises(mint.NotFoundError, match="was unloaded"):
        client.save_state("late").result()
    runs = {run["training_run_id"]: run for run in command("runs", "list", "--json").json}
    assert runs[run]["mint_status"]["state"] == "unloaded"


def test_checkpoints_are_listed_and_shown(command: Command, saved: Saved) -> None:
    assert saved.sampler in command("checkpoints", "list").out
    listed = command("checkpoints", "list", "--run", saved.run, "--json").json
    assert [c["tinker_path"] for c in listed] == [saved.sampler, saved.training]
    page = ["checkpoints", "list", "--run", saved.run, "--limit", "1", "--json"]
    assert command(*page).json == listed[:1]
    assert command(*page, "--offset", "1").json == listed[1:]
    shown = command("checkpoints", "show", saved.training.replace("tinker://", "mint://"), "--json")
    assert shown.json["lora_rank"] == 4
    assert shown.json["size_bytes"] > 0
    assert "kB" in command("checkpoints", "show", saved.sampler).out


def test_a_run_is_shown_with_its_task_reward_directory_and_age(
    command: Command, served: str, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "letters"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.25}\n{"step": 2}\n')
    about = {"task": "letters", "run_dir": str(folder)}
    client = mint.ServiceClient(base_url=served)
    run = client.create_lora_training_client(SEED_MODEL, rank=4, user_metadata=about).model_id
    [row] = [line for line in command("runs", "list").out.splitlines() if line.startswith(run)]
    assert row.split()[1:4] == ["letters", "0.250", SEED_MODEL]
    assert "runs/letters" in row
    assert str(tmp_path) not in row
    assert " s " in row  # its age


def test_short_names_work_where_they_are_unambiguous(
    command: Command, saved: Saved, served: str
) -> None:
    letters = saved.run.partition(":")[0]
    assert command("runs", "show", letters, "--json").json["training_run_id"] == saved.run
    named = [f"{letters}/first", f"{letters}/weights/first", f"{saved.run}/first"]
    for name in named:
        assert command("checkpoints", "show", name, "--json").json["tinker_path"] == saved.training
    newest = command("checkpoints", "show", letters, "--json").json["tinker_path"]
    assert newest == saved.sampler
    answer = command("sample", "x", "-m", letters, "--max-tokens", "2", "--json").json
    assert answer["model"] == saved.sampler

    client = mint.ServiceClient(base_url=served).create_training_client_from_state(saved.training)
    other = client.save_weights_for_sampler("second").result().path
    said = command("checkpoints", "show", "second")
    assert said.code == 2
    assert "'second' matches 2 checkpoints. Use one of:" in said.err
    assert saved.sampler in said.err
    assert other in said.err


# ---- sampling ------------------------------------------------------------------------------------


def test_a_prompt_is_answered_by_a_model_or_a_checkpoint(command: Command, saved: Saved) -> None:
    ask = ("sample", "Hello", "--max-tokens", "6", "--seed", "1")
    streamed = command(*ask, "--model", SEED_MODEL)
    assert streamed.code == 0, streamed.err
    whole = command(*ask, "--model", SEED_MODEL, "--json").json
    assert streamed.out == whole["choices"][0]["message"]["content"] + "\n"
    by_default = command(*ask)
    assert by_default.out == streamed.out
    assert SEED_MODEL in by_default.err
    two = command(*ask, "--model", saved.sampler, "--raw", "-n", "2")
    assert two.out.startswith("[1] ")
    assert "[2] " in two.out


def test_a_prompt_comes_from_standard_input_too(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    piped = command("sample", "--raw", "--max-tokens", "4", "--temperature", "0")
    given = command("sample", "Hello", "--raw", "--max-tokens", "4", "--temperature", "0")
    assert piped.out == given.out


# ---- files and changes ---------------------------------------------------------------------------


def test_a_checkpoint_is_downloaded_as_a_file_and_uploaded_again(
    command: Command, saved: Saved, served: str, tmp_path: Path
) -> None:
    said = command("checkpoints", "download", saved.training, "-o", "first.tar.gz")
    assert said.code == 0, said.err
    with tarfile.open(tmp_path / "first.tar.gz") as archive:
        assert "adapter_model.safetensors" in archive.getnames()
    again = command("checkpoints", "download", saved.training, "-o", "first.tar.gz")
    assert again.code == 2
    assert "--force" in again.err
    assert command("checkpoints", "download", saved.training, "-o", "first").out == "first\n"
    assert (tmp_path / "first" / "adapter_model.safetensors").is_file()
    assert "--force" in command("checkpoints", "download", saved.training, "-o", "first").err
    uploaded = command("checkpoints", "upload", "first.tar.gz", "--name", "copied")
    assert uploaded.code == 0, uploaded.err
    path = uploaded.out.strip()
    assert path.endswith("/weights/copied")
    client = mint.ServiceClient(base_url=served)
    assert client.create_training_client_from_state_with_optimizer(path).get_info()


def test_a_folder_in_peft_format_is_uploaded_as_it_is(
    command: Command, saved: Saved, served: str, tmp_path: Path
) -> None:
    assert command("checkpoints", "download", saved.sampler, "-o", "adapter.tar.gz").code == 0
    (tmp_path / "adapter").mkdir()
    with tarfile.open(tmp_path / "adapter.tar.gz") as archive:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            packed = archive.extractfile(name)
            assert packed is not None
            (tmp_path / "adapter" / name).write_bytes(packed.read())
    (tmp_path / "adapter" / "README.md").write_text("what the adapter is for")
    uploaded = command("checkpoints", "upload", "adapter", "--name", "from-peft")
    assert uploaded.code == 0, uploaded.err
    path = uploaded.out.strip()
    assert path.endswith("/sampler_weights/from-peft")
    assert mint.ServiceClient(base_url=served).create_training_client_from_state(path).get_info()


def test_a_checkpoint_is_published_kept_for_a_while_and_deleted(
    command: Command, doomed: str
) -> None:
    def shown() -> dict[str, Any]:
        return dict(command("checkpoints", "show", doomed, "--json").json)

    assert command("checkpoints", "publish", doomed).code == 0
    assert shown()["public"] is True
    assert command("checkpoints", "publish", doomed, "--undo").code == 0
    assert shown()["public"] is False
    assert command("checkpoints", "ttl", doomed, "7200").out.endswith("expires in 2 h\n")
    assert command("checkpoints", "ttl", doomed, "7d").out.endswith("expires in 7 d\n")
    assert shown()["expires_at"] is not None
    assert command("checkpoints", "ttl", doomed, "never").code == 0
    assert shown()["expires_at"] is None
    assert command("checkpoints", "delete", doomed, "--yes").code == 0
    assert command("checkpoints", "show", doomed).code == 2


def test_checkpoints_of_a_run_directory_are_those_of_its_service(
    command: Command, doomed: str, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINT_BASE_URL")
    with mint.watch.record(tmp_path / "run") as record:
        record.event("checkpoint", path=doomed)
    write_service(record.path, served)
    assert command("checkpoints", "show", "run", "--json").json["tinker_path"] == doomed
    assert command("checkpoints", "delete", "run", "--yes").out == f"deleted {doomed}\n"
    assert "There is no checkpoint" in command("checkpoints", "show", "run").err


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "show", "no-such-run"], "There is no training run 'no-such-run'"),
        (["runs", "show", "no-such-run"], "mint runs list"),
        (["runs", "list", "--url", "http://127.0.0.1:9"], "mint serve"),
        (["runs", "list", "--url", "nonsense"], "nonsense"),
        (["checkpoints", "show", "tinker://nonsense"], "is not a checkpoint path"),
        (["checkpoints", "show", "tinker://x:train:0/weights/a"], "mint checkpoints list"),
        (["checkpoints", "show", "nonsense"], "mint checkpoints list"),
        (["checkpoints", "download", "tinker://x:train:0/weights/a"], "There is no checkpoint"),
        (["checkpoints", "ttl", "tinker://x:train:0/weights/a", "soon"], "or never"),
        (["checkpoints", "upload", "no-such-file"], "no-such-file"),
        (["checkpoints", "upload", "."], "has no adapter_config.json"),
        (["sample", "x", "--model", "no/such-model"], "There is no model 'no/such-model'"),
        (["sample", "x", "--max-tokens", "100000"], "max_tokens"),
        (["sample", "x", "--raw", "--system", "y"], "--system"),
        (["models", "add", "my/model", "nowhere"], "no such folder"),
        (["models", "remove", "my/model"], "There is no model 'my/model'"),
        (["keys", "revoke", "nobody"], "There is no active key 'nobody'"),
    ],
)
def test_a_mistake_gives_one_message_and_exit_code_2(
    command: Command, arguments: list[str], message: str
) -> None:
    said = command(*arguments)
    assert said.code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


# ---- on this machine -----------------------------------------------------------------------------


def test_a_name_for_a_folder_stays_until_it_is_removed(command: Command, tiny_model: Path) -> None:
    assert command("models", "add", "my/tiny", str(tiny_model)).code == 0
    listed = command("models", "list", "--json").json
    assert {"name": "my/tiny", "source": "alias", "folder": str(tiny_model)} in listed
    assert command("models", "get", "my/tiny").out.strip() == str(tiny_model.resolve())
    assert command("models", "remove", "my/tiny").code == 0
    assert "my/tiny" not in command("models", "list").out


def test_keys_are_made_listed_and_revoked(command: Command) -> None:
    assert command("keys", "list", "--json").json == []
    key = command("keys", "create", "laptop", "--user", "ada", "--prefix", "sk-").out
    assert key.startswith("sk-")
    again = command("keys", "create", "laptop")
    assert (again.code, "laptop" in again.err) == (2, True)
    (listed,) = command("keys", "list", "--json").json
    assert (listed["name"], listed["user"], listed["revoked_at"]) == ("laptop", "ada", None)
    assert (listed["scope"], listed["expires_at"], listed["last_used_at"]) == ("train", None, None)
    assert key.strip() not in command("keys", "list").out
    assert "last active key" in command("keys", "revoke", "laptop").out
    assert command("keys", "list", "--json").json[0]["revoked_at"] is not None


def test_a_second_key_of_a_user_is_reported_to_share_everything(command: Command) -> None:
    first = command("keys", "create", "laptop")
    assert first.err == ""
    second = command("keys", "create", "desktop")
    assert second.out.startswith("tml-")
    assert len(second.out.split()) == 1, "scripts read the key from the output"
    assert "shares all runs and checkpoints with laptop" in second.err
    assert "--user NAME" in second.err
    assert command("keys", "create", "ada", "--user", "ada").err == ""
    command("keys", "revoke", "laptop")
    command("keys", "revoke", "desktop")
    assert command("keys", "create", "new").err == "", "revoked keys share nothing"


def test_a_key_has_a_scope_and_may_expire(command: Command) -> None:
    assert command("keys", "create", "app", "--scope", "sample", "--expires", "30d").code == 0
    (listed,) = command("keys", "list", "--json").json
    expires, created = (datetime.fromisoformat(listed[f"{x}_at"]) for x in ("expires", "created"))
    assert listed["scope"] == "sample"
    assert (expires - created).days in (29, 30)
    assert "sample" in command("keys", "list").out
    for wrong in ("soon", "99999999999d"):
        assert command("keys", "create", "other", "--expires", wrong).code == 2
    assert command("keys", "create", "other", "--scope", "root").code == 2
    assert len(command("keys", "list", "--json").json) == 1


def test_rewards_are_a_command_too(command: Command) -> None:
    assert command("rewards", "list").code == 0


def test_shells_can_complete_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MINT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "mint checkpoints d")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert set(command().out.split()) == {"download", "delete"}


# ---- tinker's own commands -----------------------------------------------------------------------


def tinker(served: str, *arguments: str) -> Any:
    from tinker.cli.__main__ import main_cli

    environment = {"TINKER_BASE_URL": served, "TINKER_API_KEY": "tml-x"}
    result = CliRunner(env=environment).invoke(main_cli, ["--format", "json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if result.stdout.startswith(("{", "[")) else result.stdout


def test_the_tinker_command_reads_runs_and_checkpoints(served: str, saved: Saved) -> None:
    assert saved.run in json.dumps(tinker(served, "run", "list"))
    assert SEED_MODEL in json.dumps(tinker(served, "run", "info", saved.run))
    assert saved.training in json.dumps(tinker(served, "checkpoint", "list"))
    assert saved.sampler in json.dumps(tinker(served, "checkpoint", "list", "--run-id", saved.run))
    assert saved.training in json.dumps(tinker(served, "checkpoint", "info", saved.training))
    assert SEED_MODEL in json.dumps(tinker(served, "model", "list"))


def test_the_tinker_command_changes_checkpoints(
    command: Command, served: str, doomed: str, tmp_path: Path
) -> None:
    tinker(served, "checkpoint", "publish", doomed)
    tinker(served, "checkpoint", "unpublish", doomed)
    tinker(served, "checkpoint", "set-ttl", doomed, "--ttl", "7200")
    tinker(served, "checkpoint", "download", doomed, "--output", str(tmp_path))
    assert list(tmp_path.rglob("adapter_model.safetensors"))
    tinker(served, "checkpoint", "delete", doomed, "--yes")
    assert command("checkpoints", "show", doomed).code == 2
