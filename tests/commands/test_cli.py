"""The ``mint`` command: its output, and its error messages."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import mint
from mint.commands.shared.errors import report_error
from tests.sdk.conftest import ready_url


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint.cli", *arguments],
        env={**os.environ, "COLUMNS": "200", "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"mint {mint.__version__}\n"


def test_models_list_shows_configured_models(tiny_model: Path) -> None:
    result = run("models", "list", MINT_MODELS=f"my/tiny={tiny_model}")
    assert result.stdout.splitlines()[1].split() == ["my/tiny", str(tiny_model)]


def test_models_get_prints_the_folder(tiny_model: Path) -> None:
    result = run("models", "get", "my/tiny", MINT_MODELS=f"my/tiny={tiny_model}")
    assert Path(result.stdout.strip()) == tiny_model.resolve()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command"),
        (["serve", "--port", "99999"], "65535"),
        (["serve", "--port", "many"], "--port"),
        (["serve", "--precision", "fast"], "one of auto, exact, half, bfloat16."),
        (["serve", "--model", "=folder"], "write NAME or NAME=FOLDER"),
        (["serve", "--model", "name="], "write NAME or NAME=FOLDER"),
        (["serve", "--home", __file__], "--home"),
        (["serve", "--model", "no/such-model"], "There is no model 'no/such-model'"),
        (["keys", "create", ""], "'' is not a name"),
        (["keys", "create", "two\nlines"], r"'two\nlines' is not a name"),
        (["keys", "create", "ada", "--user", " "], "' ' is not a name"),
        (["keys", "create", "ada", "--expires", "0d"], "would expire at once"),
        (["runs", "list", "--url", "localhost:8000"], "is not the URL of a service"),
        (["models", "get", "no/such-model"], "There is no model 'no/such-model'"),
    ],
)
def test_a_mistake_gives_one_message_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, MINT_HOME=str(tmp_path))
    assert result.returncode == 2
    assert message in re.sub(r"\s+", " ", result.stderr)
    assert "Traceback" not in result.stderr


def test_a_closed_output_ends_a_command_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert report_error(error) == 1
    assert capsys.readouterr().err == f"mint: {error}\n"


def test_a_port_in_use_is_a_mistake_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("serve", "--port", port, MINT_HOME=str(tmp_path))
    assert result.returncode == 2
    assert "--port" in result.stderr
    assert "Traceback" not in result.stderr


def test_serving_other_machines_needs_a_key_and_says_how_to_make_one(tmp_path: Path) -> None:
    result = run("serve", "--host", "0.0.0.0", "--port", "0", "--home", str(tmp_path))
    assert result.returncode == 2
    assert f"mint keys create --home {tmp_path}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_created_key_is_printed_and_asked_for(tmp_path: Path) -> None:
    key = run("keys", "create", "--home", str(tmp_path)).stdout.strip()
    assert key.startswith("tml-")
    command = [sys.executable, "-m", "mint.cli", "serve", "--port", "0", "--home", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        url = ready_url(process, tmp_path / "log")
        assert mint.ServiceClient(base_url=url, api_key=key).get_server_capabilities()
        with pytest.raises(mint.AuthenticationError):
            mint.ServiceClient(base_url=url, api_key="tml-other").get_server_capabilities()
    finally:
        process.terminate()
        process.wait(30)
