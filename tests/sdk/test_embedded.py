"""The life of the service that a script starts for itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mint.embedded import KEPT_LOGS, EmbeddedServiceError, _new_log
from tests.processes import is_running

HELLO = """
import sys, mint
from mint.embedded import embedded_service
client = mint.ServiceClient()
print(embedded_service().process.pid, flush=True)
"""
WAIT = "sys.stdin.read()\n"


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def child_of(script: subprocess.Popen[str]) -> int:
    assert script.stdout
    line = script.stdout.readline()
    assert line, script.communicate()[1]
    return int(line)


def ends(pid: int) -> bool:
    for _ in range(300):
        if not is_running(pid):
            return True
        time.sleep(0.1)
    return False


def test_the_service_ends_with_its_script(embedded: dict[str, str]) -> None:
    script = start(HELLO, embedded)
    output, errors = script.communicate()
    assert script.returncode == 0, errors
    assert ends(int(output))
    assert re.search(
        r"^mint: embedded service at (http://127.0.0.1:\d+) "
        r"\(dashboard: \1/watch#key=tml-[\w-]+, log: .+\.log\)$",
        errors,
        re.M,
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_service_ends_when_its_script_is_killed(
    how: signal.Signals, embedded: dict[str, str]
) -> None:
    script = start(HELLO + WAIT, embedded)
    service = child_of(script)
    assert is_running(service)
    script.send_signal(how)
    script.communicate()
    assert ends(service)


@pytest.mark.slow
def test_two_scripts_at_once_have_a_service_each(embedded: dict[str, str]) -> None:
    train = f"""
import mint
from mint import types
client = mint.ServiceClient().create_lora_training_client("Qwen/Qwen3-0.6B", rank=2)
datum = types.Datum(model_input=types.ModelInput.from_ints([65, 66]),
                    loss_fn_inputs={{"target_tokens": [66, 67], "weights": [1.0, 1.0]}})
client.forward_backward([datum], loss_fn="cross_entropy").result()
client.optim_step(types.AdamParams()).result()
print(client.save_state(name="same-name").result().path, flush=True)
{WAIT.replace("sys", "__import__('sys')")}
"""
    scripts = [start(train, embedded) for _ in range(2)]
    paths = [script.stdout.readline() for script in scripts if script.stdout]
    errors = [script.communicate()[1] for script in scripts]
    assert all(path.startswith("tinker://") for path in paths), errors
    assert paths[0] != paths[1]
    addresses = {re.search(r"http://\S+", text)[0] for text in errors}  # type: ignore[index]
    assert len(addresses) == 2


def test_threads_and_clients_share_one_service(embedded: dict[str, str]) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import mint
with ThreadPoolExecutor(8) as pool:
    clients = list(pool.map(lambda _: mint.ServiceClient(), range(8)))
print(len({client._base_url for client in clients}))
"""
    output, errors = start(code, embedded).communicate()
    assert output.strip() == "1", errors
    assert errors.count("mint: embedded service at") == 1


def test_a_forked_child_leaves_its_parents_service_alone(embedded: dict[str, str]) -> None:
    fork = """
import os
if os.fork() == 0:
    sys.exit()
os.wait()
print(client.get_server_capabilities().supported_models[0].model_name, flush=True)
"""
    output, errors = start(HELLO + fork, embedded).communicate()
    assert output.split()[1:] == ["Qwen/Qwen3-0.6B"], errors


def test_it_works_inside_a_running_event_loop(embedded: dict[str, str]) -> None:
    code = """
import asyncio, mint
async def cell():
    client = mint.ServiceClient()
    training_client = await client.create_lora_training_client_async("Qwen/Qwen3-0.6B", rank=2)
    sampler = await training_client.save_weights_and_get_sampling_client_async(name="cell")
    prompt = mint.ModelInput.from_ints([65])
    result = await sampler.sample_async(prompt, 2, mint.SamplingParams(max_tokens=2))
    print(len(result.sequences))
asyncio.run(cell())
"""
    output, errors = start(code, embedded).communicate()
    assert output.strip() == "2", errors


def test_the_proxies_of_the_environment_are_not_asked_for_the_service(
    embedded: dict[str, str],
) -> None:
    """They cannot reach it, and the client tried again without end."""
    proxy = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ask = """
from mint.commands.shared.remote import Remote
print(client.get_server_capabilities().supported_models[0].model_name, flush=True)
print(Remote(embedded_service().url).answers(), __import__("os").environ["NO_PROXY"])
"""
    environment = {**embedded, **dict.fromkeys(names, proxy), "NO_PROXY": "example.org"}
    output, errors = start(HELLO + ask, environment).communicate(timeout=60)
    assert output.split()[1:] == ["Qwen/Qwen3-0.6B", "True", "example.org,127.0.0.1"], errors


def test_the_service_process_has_no_torch(embedded: dict[str, str]) -> None:
    script = start(HELLO + WAIT, embedded)
    service = child_of(script)
    assert "libtorch" not in Path(f"/proc/{service}/maps").read_text()
    script.communicate()


def test_a_model_that_is_slow_to_load_does_not_delay_the_start(
    embedded: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    """The models of config.yaml were loaded first, within the limit of the start."""
    slow = Path(shutil.copytree(tiny_model, tmp_path / "slow"))
    (slow / "model.safetensors").unlink()
    os.mkfifo(slow / "model.safetensors")  # whoever reads it waits
    settings = {"MINT_MODELS": f"a/slow={slow}", "MINT_PRELOAD": "a/slow"}
    ask = "print(client.get_server_capabilities().supported_models[0].model_name)"
    output, errors = start(HELLO + ask, {**embedded, **settings}).communicate(timeout=60)
    assert output.split()[1:] == ["a/slow"], errors


def test_a_failed_start_shows_the_log_and_what_to_do(embedded: dict[str, str]) -> None:
    script = start(HELLO, {**embedded, "MINT_MODELS": "nonsense"})
    _, errors = script.communicate()
    assert script.returncode == 1
    assert "The embedded service ended with exit code 2" in errors
    assert "write NAME=FOLDER" in errors
    log = re.search(r"last lines of its log, (\S+\.log):", errors)
    assert log
    assert Path(log[1]).is_file()
    assert "mint serve --port 8000" in errors


def test_a_home_that_cannot_be_written_is_explained(
    embedded: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    _, errors = start(HELLO, {**embedded, "MINT_HOME": str(tmp_path / "file")}).communicate()
    assert "Set MINT_HOME to a folder that you can write to." in errors


def test_the_end_of_the_service_is_reported_with_its_log(embedded: dict[str, str]) -> None:
    script = start(HELLO + WAIT, embedded)
    os.kill(child_of(script), signal.SIGKILL)
    assert script.stderr
    lines = iter(script.stderr.readline, "")
    report = next(line for line in lines if "ended with exit code -9" in line)
    assert ".log" in report
    script.communicate()


@pytest.mark.parametrize("closed", [False, True])
def test_a_script_whose_messages_cannot_be_written_still_gets_a_service(
    embedded: dict[str, str], closed: bool
) -> None:
    close = "import sys; sys.stderr.close()\n" if closed else ""
    command = [sys.executable, "-c", close + HELLO]
    with open("/dev/full", "w") as full:
        script = subprocess.run(command, env=embedded, stdout=subprocess.PIPE, stderr=full)
    assert ends(int(script.stdout))


def test_a_log_has_a_name_of_its_own_and_is_private(tmp_path: Path) -> None:
    logs = {_new_log(tmp_path / "home") for _ in range(3)}
    assert len(logs) == 3
    for path in (*logs, tmp_path / "home", tmp_path / "home" / "logs"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_of_logs_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "logs").symlink_to("/proc/self")
    with pytest.raises(EmbeddedServiceError, match="Set MINT_HOME to a folder"):
        _new_log(tmp_path)


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for day in range(KEPT_LOGS + 20):
        (tmp_path / "logs" / f"embedded-{20260101 + day}-000000-1.log").touch()
    _new_log(tmp_path).touch()
    left = sorted(file.name for file in (tmp_path / "logs").iterdir())
    assert len(left) == KEPT_LOGS
    assert left[0] == f"embedded-{20260101 + 21}-000000-1.log"
