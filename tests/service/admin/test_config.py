"""Where settings come from, which one takes precedence, and messages for wrong ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from mint.config_error import ConfigError
from mint.engine.messages import PRECISIONS
from mint.service.admin.aliases import read_aliases, write_aliases
from mint.service.admin.configuration import PREFIX, load
from mint.service.admin.settings import Settings
from tests.settings_table import table


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("MINT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MINT_HOME", str(tmp_path))
    return tmp_path


def mistake(**flags: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(flags)
    return str(error.value)


def test_without_any_source_the_defaults_hold(home: Path) -> None:
    assert load({}).settings.model_dump() == Settings(home=home).model_dump()


def test_flags_win_over_variables_and_those_over_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.yaml").write_text("port: 1\nlong_poll_s: 2\nhost: '::1'\n")
    monkeypatch.setenv("MINT_LONG_POLL_S", "3")
    monkeypatch.setenv("MINT_PORT", "4")
    configuration = load({"port": 5, "host": None})
    settings = configuration.settings
    assert (settings.port, settings.long_poll_s, settings.host) == (5, 3.0, "::1")
    assert configuration.sources == {
        "home": "MINT_HOME",
        "port": "--port",
        "long_poll_s": "MINT_LONG_POLL_S",
        "host": str(home / "config.yaml"),
    }


def test_aliases_of_all_sources_are_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config.yaml").write_text("aliases: {a/a: models/a, b/b: /file}\n")
    monkeypatch.setenv("MINT_MODELS", "b/b=/variable, c/c=/variable")
    aliases = load({"aliases": {"c/c": Path("/flag")}}).settings.aliases
    assert aliases == {
        "a/a": home / "models/a",
        "b/b": Path("/variable"),
        "c/c": Path("/flag"),
    }


def test_models_to_load_come_as_a_list_or_with_commas(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.yaml").write_text("models: [a/a]\n")
    assert load({}).settings.models == ("a/a",)
    monkeypatch.setenv("MINT_PRELOAD", "b/b, c/c")
    assert load({}).settings.models == ("b/b", "c/c")


def test_a_named_file_is_read_instead_and_may_say_where_home_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINT_HOME")
    file = tmp_path / "other.yaml"
    file.write_text("home: state\n")
    assert load({}, file).settings.home == tmp_path / "state"
    with pytest.raises(ConfigError, match=r"no configuration file .*missing\.yaml"):
        load({}, tmp_path / "missing.yaml")


def test_the_key_that_clients_send_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINT_API_KEY", "tml-client")
    monkeypatch.setenv("MINT_BASE_URL", "http://elsewhere")
    monkeypatch.setenv("MINT_RL_STEPS", "3")
    assert load({}).settings.api_key is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prot: 1", ["config.yaml", "'prot'", "Did you mean 'port'?"]),
        ("session_idle: 1", ["Did you mean 'session_idle_s'?"]),
        ("port: many", ["config.yaml", "port is 'many'", "integer"]),
        ("port: 70000", ["port is 70000; it must be 65535 or less."]),
        ("log_format: xml", ["log_format is 'xml'", "one of text, json."]),
        ("precision: fast", ["precision is 'fast'", "one of auto, exact, half, bfloat16."]),
        ("long_poll_s: -1", ["long_poll_s is -1; it must be 0 or more."]),
        ("aliases: {a: 3}", ["aliases.a is 3"]),
        ("aliases: [a]", ["aliases"]),
        ("api_key: tml-x", ["api_key cannot be set in a file"]),
        ("- a", ["must be a mapping"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_a_mistake_in_the_file_is_named(home: Path, text: str, parts: list[str]) -> None:
    (home / "config.yaml").write_text(text)
    said = mistake()
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MINT_PROT", "1", "Did you mean 'MINT_PORT'?"),
        ("MINT_MODEL", "a=b", "Did you mean 'MINT_MODELS'?"),
        ("MINT_PORT", "many", "MINT_PORT: port is 'many'"),
        ("MINT_MODELS", "just-a-name", "write NAME=FOLDER"),
    ],
)
def test_a_mistake_in_a_variable_is_named(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert said in mistake()


def test_a_mistake_in_a_flag_is_named() -> None:
    assert "--log-format: log_format is 'xml'" in mistake(log_format="xml")
    assert "--precision: precision is 'float16'" in mistake(precision="float16")


def test_the_precision_is_one_that_engines_know(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load({}).settings.precision == "auto"
    assert get_args(Settings.model_fields["precision"].annotation) == PRECISIONS
    (home / "config.yaml").write_text("precision: half\n")
    assert load({}).settings.precision == "half"
    monkeypatch.setenv("MINT_PRECISION", "bfloat16")
    assert load({}).settings.precision == "bfloat16"
    assert load({"precision": "exact"}).settings.precision == "exact"


def check_config(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", "serve", "--check-config", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_check_config_prints_what_would_be_in_force_without_secrets(tiny_model: Path) -> None:
    url = "postgresql+psycopg://mint:s3cret@db/mint"
    result = check_config("--port", "9", "--model", f"my/tiny={tiny_model}", MINT_DATABASE_URL=url)
    assert result.returncode == 0, result.stderr
    printed = yaml.safe_load(result.stdout)
    assert printed["port"] == 9
    assert printed["aliases"] == {"my/tiny": str(tiny_model)}
    assert set(printed) == set(Settings.model_fields) - {"api_key", "parent_pid"}
    assert "s3cret" not in result.stdout
    assert "# MINT_DATABASE_URL" in result.stdout


def test_check_config_exits_with_2_on_a_mistake(home: Path) -> None:
    (home / "config.yaml").write_text("prot: 1\n")
    result = check_config()
    assert result.returncode == 2
    assert "Did you mean 'port'?" in result.stderr
    assert "Traceback" not in result.stderr
    (home / "config.yaml").write_text("aliases: {a/b: nowhere}\n")
    assert "no such folder" in check_config().stderr


def test_keys_and_passwords_are_not_in_the_repr() -> None:
    settings = Settings(api_key="tml-secret", database_url="postgresql://u:s3cret@h/d")
    assert "secret" not in repr(settings)
    assert "s3cret" not in repr(settings)


def test_the_documentation_has_every_setting_with_its_default() -> None:
    documented = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    values = Settings(home=Path("/")).model_dump(mode="json")
    defaults = {name: json.dumps(value).strip('"') for name, value in values.items()}
    rendered = table(Settings, PREFIX, {**defaults, "home": "~/.mint"}, "description")
    assert rendered in documented, f"write this into docs/operations.md:\n{rendered}"


# ---- aliases in the file -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "port: 1  # ours\n",
        "# first\naliases: {x/y: /old}\nport: 1  # last",
        "aliases:\n  x/y: /old  # gone\n\n# a comment\nport: 1\n",
        "port: 1\naliases:\n  x/y: /old\n",
    ],
)
def test_changing_aliases_leaves_the_rest_of_the_file(home: Path, text: str) -> None:
    file = home / "config.yaml"
    file.write_text(text)
    before = yaml.safe_load(text) or {}
    write_aliases(file, {"a/b": Path("/m"), "c d": Path("/with space")})
    assert yaml.safe_load(file.read_text()) == {
        **before,
        "aliases": {"a/b": "/m", "c d": "/with space"},
    }
    assert read_aliases(file) == {"a/b": Path("/m"), "c d": Path("/with space")}
    write_aliases(file, {})
    before.pop("aliases", None)
    assert (yaml.safe_load(file.read_text()) or {}) == before
    for comment in ("# ours", "# first", "# last", "# a comment"):
        assert (comment in file.read_text()) == (comment in text)


def test_a_home_folder_that_is_created_for_aliases_is_private(tmp_path: Path) -> None:
    write_aliases(tmp_path / "home" / "config.yaml", {"a/b": Path("/m")})
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0
