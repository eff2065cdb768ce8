"""A home folder that cannot be written: one clear error, and everything acknowledged is kept."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tinker

from tests.needs import need_sandbox
from tests.reliability.conftest import Faults
from tests.reliability.test_full_disk import step, train
from tests.reliability.test_kills import client_of, saved
from tests.service.samples import datum
from tests.service_fixture import LiveService

Start = Callable[..., LiveService]


@pytest.mark.slow
def test_a_service_refuses_a_read_only_home_and_resumes_when_it_can_be_written(
    own_service: Start,
) -> None:
    need_sandbox()
    service = own_service()
    client = client_of(service.base_url)
    expected = saved(train(client, 3), service.home)
    training = train(client, 2)
    service.stop()

    binary = shutil.which("bwrap")
    assert binary is not None
    home = str(service.home)
    box = (binary, "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", home, home)
    serve = (sys.executable, "-m", "mint.cli", "serve", "--port", "0", "--home", home)
    refused = subprocess.run([*box, *serve], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert f"The home folder {home} cannot be written: Read-only file system." in line
    assert "--home" in line

    own_service(service.port)
    for future in step(training, 2):
        future.result()
    assert saved(training, service.home) == expected


def test_a_home_that_becomes_read_only_fails_what_it_cannot_keep_and_nothing_else(
    own_service: Start, faults: Faults
) -> None:
    faults.at("mint.service.runs.journal:Journal.append_operation", 5, "EROFS")
    faults.at("mint.engine.engine:Engine.save_state", 1, "EROFS")
    faults.at("mint.service.checkpoints.storage:CheckpointStore.publish", 1, "EROFS")
    service = own_service(long_poll_s=1.0)
    client = client_of(service.base_url)
    training = train(client, 2)
    refused = training.forward_backward([datum(7)], "cross_entropy"), training.save_state("never")
    for future in refused:
        assert "Read-only file system" in failure(future)
    assert "Read-only file system" in failure(training.save_state("neither"))
    faults.require_all()
    for future in step(training, 2):
        future.result()
    state = saved(training, service.home)
    assert saved(train(client, 3), service.home) == state
    assert not list((service.home / "checkpoints").rglob(".draft*"))


def failure(future: Any) -> str:
    """Return the text of the error that a future ends with."""
    with pytest.raises(tinker.TinkerError) as caught:
        future.result()
    return str(caught.value)
