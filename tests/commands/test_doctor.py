"""``mint doctor`` on machines and services that are really broken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from typer.main import get_command

from mint.catalog import WEIGHTS_PACKAGES
from mint.cli import app
from mint.commands.service.doctor import (
    CheckResult,
    check_database,
    check_disk,
    check_home,
    check_machine,
    check_models,
    check_port,
    check_service,
)
from mint.commands.shared.remote import Remote
from mint.service.access.auth import create_key
from mint.service.admin.settings import Settings
from mint.service.store.database import RunRow, Store, now

Check = Callable[[Settings], Iterator[CheckResult]]
_IN_A_SANDBOX = """
import sys
from pathlib import Path
from mint.commands.service import doctor
from mint.service.admin.settings import Settings
check = getattr(doctor, sys.argv[1])
print([(f.level, f.text, f.advice) for f in check(Settings(home=Path(sys.argv[2])))])
"""


def store_in(home: Path) -> Store:
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    store.migrate()
    return store


def levels(check: Check, home: Path, **settings: object) -> list[tuple[str, str]]:
    found = check(Settings(home=home, **settings))  # type: ignore[arg-type]
    return [(finding.check, finding.level) for finding in found]


def one(check: Check, home: Path, name: str, **settings: object) -> CheckResult:
    found = check(Settings(home=home, **settings))  # type: ignore[arg-type]
    [finding] = [finding for finding in found if finding.check == name]
    return finding


def boxed(check: str, home: Path, *mount: str) -> str:
    """Run a check where the home folder is mounted otherwise."""
    if (binary := shutil.which("bwrap")) is None:
        pytest.skip("bubblewrap is not installed")
    home.mkdir(mode=0o700)
    command = [binary, "--dev-bind", "/", "/", *mount, sys.executable, "-c", _IN_A_SANDBOX]
    result = subprocess.run([*command, check, str(home)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_read_only_home_is_a_problem(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = boxed("check_home", home, "--ro-bind", str(home), str(home))
    assert "problem" in said
    assert "Read-only file system" in said
    assert "--home" in said


def test_a_small_disk_is_a_problem(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = boxed("check_disk", home, "--size", "1048576", "--tmpfs", str(home))
    assert "only 1.0 MB free" in said
    assert "problem" in said
    assert "mint checkpoints prune" in said


def test_a_home_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = one(check_home, tmp_path, "home")
    assert (found.level, found.advice) == ("warning", f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert one(check_home, tmp_path, "home").level == "ok"
    assert one(check_disk, tmp_path, "disk").text


def test_a_damaged_database_is_a_problem(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for number in range(200):
        create_key(store, f"key-{number}", "ada")
    store.close()
    assert levels(check_database, tmp_path)[0] == ("database", "ok")
    file = tmp_path / "mint.db"
    content = bytearray(file.read_bytes())
    content[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
    file.write_bytes(content)
    found = one(check_database, tmp_path, "database")
    assert found.level == "problem"
    assert "from a backup" in found.advice
    file.write_text("this is no database at all")
    assert one(check_database, tmp_path, "database").level == "problem"


def test_versions_of_the_database_are_distinguished(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate("0003")
    assert "migrated at the next start" in one(check_database, tmp_path, "database").text
    store.migrate()
    assert "up to date" in one(check_database, tmp_path, "database").text
    with store._engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    found = one(check_database, tmp_path, "database")
    assert (found.level, found.advice) == ("problem", "Install the mint that last used it.")


def test_a_database_that_cannot_be_reached_is_a_problem_in_the_databases_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/mint")
    [found] = [each for each in check_machine(tmp_path) if each.check == "database"]
    assert found.level == "problem"
    assert "the check failed: OperationalError: connection failed" in found.text
    assert "sqlalche.me" not in found.text


def test_keys_that_no_client_can_use_are_a_problem(tmp_path: Path) -> None:
    assert one(check_database, tmp_path, "keys").level == "ok"
    assert one(check_database, tmp_path, "keys", host="0.0.0.0").level == "problem"
    store = store_in(tmp_path)
    create_key(store, "old", "ada", expires_at=now() - timedelta(days=1))
    found = one(check_database, tmp_path, "keys")
    assert found.level == "problem"
    assert "mint keys create" in found.advice
    create_key(store, "short", "ada", expires_at=now() + timedelta(days=1))
    assert levels(check_database, tmp_path)[-2:] == [("keys", "warning"), ("keys", "ok")]


def test_a_clock_that_is_behind_is_a_warning(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    later = now() + timedelta(days=3)
    run = RunRow(id="r", session_id="s", user="u", base_model="m", lora={}, last_request_at=later)
    store.add_once(run, "r")
    assert one(check_database, tmp_path, "clock").level == "warning"


def test_models_that_are_not_there_are_a_problem(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("mint.catalog.WEIGHTS_PACKAGES", ())
    monkeypatch.setattr("mint.commands.service.doctor.WEIGHTS_PACKAGES", WEIGHTS_PACKAGES[:1])
    aliases = {"a/good": tiny_model, "a/bad": tmp_path}
    found = levels(check_models, tmp_path, aliases=aliases, models=("a/good", "no/such"))
    assert [level for _, level in found if level != "ok"] == ["problem", "problem"]
    assert ("models", "ok") in found


def test_a_port_of_another_program_is_a_problem(tmp_path: Path, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        threading.Thread(target=lambda: other.accept()[0].close()).start()
        found = one(check_port, tmp_path, "port", port=port)
        other.close()
    assert found.level == "problem"
    assert "--port 0" in found.advice
    own = int(service.rsplit(":", 1)[1])
    assert "a mint service answers" in one(check_port, tmp_path, "port", port=own).text


def test_a_service_is_checked_as_its_clients_see_it(service: str) -> None:
    found = {finding.check: finding for finding in check_service(Remote(service))}
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "tiny/llama" in found["models"].text
    [gone] = check_service(Remote("http://127.0.0.1:9"))
    assert gone.level == "problem"


def test_the_command_says_what_is_wrong_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mint.db").write_text("no database")
    monkeypatch.setenv("MINT_HOME", str(tmp_path))
    result = CliRunner().invoke(get_command(app), ["doctor"])
    assert result.exit_code == 1
    assert "PROBLEM  database:" in result.output
    (tmp_path / "mint.db").unlink()
    (tmp_path / "config.yaml").write_text("prot: 1\n")
    result = CliRunner().invoke(get_command(app), ["doctor", "--json"])
    assert result.exit_code == 1
    [finding] = json.loads(result.output)
    assert "Did you mean 'port'" in finding["text"]
