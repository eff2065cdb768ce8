"""The dashboard at a service's own address: what it shows of the service, and to whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.watch.generate import generate
from tests.needs import need_browser
from tests.service_fixture import LiveService, RawClient, start_service
from tests.watch.dashboard.browser_checks import problems_of

PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def service(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service of the local user with a model, and a folder of runs."""
    folder = tmp_path_factory.mktemp("service")
    generate(folder / "runs" / "mine", steps=3, groups=2, answers=2)
    settings = {"models": ("tiny/llama",), "runs": folder / "runs"}
    service = start_service(folder / "home", tiny_model, **settings)
    yield service
    service.stop()


def checkpoint(service: LiveService, save: str) -> str:
    """A checkpoint of a new run."""
    raw = RawClient(service.base_url)
    run = raw.run()
    request = raw.operate(save, run, 1, path="sums")
    return str(raw.result(request)["path"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = need_browser()  # before Playwright, whose own program may not start either
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(reduced_motion="reduce")  # colours that fade have no contrast yet
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield page
    page.close()


@pytest.mark.parametrize("save", ["save_weights_for_sampler", "save_weights"])
def test_the_service_shows_itself_and_a_checkpoint_chats_beside_its_base_model(
    service: LiveService, page: Page, save: str
) -> None:
    path = checkpoint(service, save)
    assert httpx.get(f"{service.base_url}/watch").headers["location"].endswith("/watch/")
    page.goto(f"{service.base_url}/watch")
    expect(page.get_by_role("link", name="mine", exact=True)).to_be_visible()
    page.get_by_role("link", name="Service").click()
    expect(page.locator(".model")).to_contain_text("tiny/llama")
    expect(page.locator(".model")).to_contain_text(re.compile("KV cache.*tokens", re.S))
    expect(page.locator(".model")).to_contain_text(re.compile(r"Memory of the process\d.* GiB"))
    page.get_by_role("link", name=f"Chat with {path}").click()
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    for label in ("checkpoint", "base model"):
        said = page.get_by_role("log", name=f"Chat with the {label}")
        expect(said.locator(".message.user")).to_contain_text("Hello")
        expect(said.locator(".message.assistant .text")).not_to_be_empty()
        expect(said.locator(".problem")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.locator(".problem")).to_have_count(0)
    assert problems_of(page) == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert problems_of(page) == []


def test_other_names_for_this_machine_see_nothing(service: LiveService) -> None:
    answer = httpx.get(f"{service.base_url}/watch/api/runs", headers={"host": "evil.example"})
    assert answer.status_code in (403, 421)  # the service refuses it before the dashboard does


def test_run_directories_are_the_local_users_only(
    own_service: Callable[..., LiveService], tmp_path: Path
) -> None:
    generate(tmp_path / "runs" / "mine", steps=1, groups=1, answers=1)
    from mint.service.access.auth import create_key
    from mint.service.admin.settings import Settings
    from mint.service.store.database import Store

    home = tmp_path / "home"
    home.mkdir()
    store = Store(Settings(home=home).store_url, home)
    store.migrate()
    key = create_key(store, "a colleague's", "colleague")
    store.close()
    url = own_service(runs=tmp_path / "runs").base_url
    named = httpx.get(f"{url}/watch/api/runs", headers={"x-api-key": key}).json()
    assert named == {"runs": [], "hidden": True}
    assert httpx.get(f"{url}/watch/api/runs").json()["hidden"]
    assert httpx.get(f"{url}/watch/api/service").status_code == 401
    status = httpx.get(f"{url}/watch/api/service", headers={"x-api-key": key})
    assert status.json()["runs"] == []


@pytest.fixture(scope="module")
def embedded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that accepts one key only, as one that a script starts does."""
    folder = tmp_path_factory.mktemp("embedded")
    generate(folder / "runs" / "mine", steps=1, groups=1, answers=1)
    settings = {"models": ("tiny/llama",), "runs": folder / "runs", "api_key": "tml-secret"}
    service = start_service(folder / "home", tiny_model, **settings)
    yield service.base_url
    service.stop()


def test_an_embedded_service_shows_its_runs_and_keeps_its_key(embedded: str) -> None:
    url = embedded
    key = {"x-api-key": "tml-secret"}
    [run] = httpx.get(f"{url}/watch/api/runs", headers=key).json()["runs"]
    assert run["name"] == "mine"
    assert httpx.get(f"{url}/watch/api/service", headers=key).status_code == 200
    for path in ("runs", "service", f"runs/{run['id']}"):  # other users of the machine
        assert httpx.get(f"{url}/watch/api/{path}").status_code == 401
    asked = httpx.post(f"{url}/v1/chat/completions", json={"model": "x", "messages": []})
    assert asked.status_code == 401


def test_the_playground_of_an_embedded_service_takes_its_key(embedded: str, page: Page) -> None:
    url = embedded
    said = page.get_by_role("log", name="Chat with the base model")

    def say_hello() -> None:
        page.get_by_role("link", name="Service").click()
        page.get_by_label("Message").fill("Hello")
        page.get_by_role("button", name="Send").click()

    page.goto(f"{url}/watch")
    page.get_by_label("Key", exact=True).fill("tml-secret")
    page.get_by_role("button", name="Open", exact=True).click()
    say_hello()
    expect(said.locator(".message.assistant .text")).not_to_be_empty()
    expect(said.locator(".problem")).to_have_count(0)
    page.evaluate("sessionStorage.clear()")
    page.goto("about:blank")
    page.goto(f"{url}/watch#key=tml-secret")  # the address that a script prints
    say_hello()
    expect(said.locator(".message.assistant .text")).not_to_be_empty()
    expect(said.locator(".problem")).to_have_count(0)
    assert "tml-secret" not in page.url


def test_runs_in_other_folders_are_shown_when_they_were_trained_here(
    service: LiveService, tmp_path: Path
) -> None:
    generate(tmp_path / "elsewhere" / "trained-here", steps=1, groups=1, answers=1)
    generate(tmp_path / "elsewhere" / "other", steps=1, groups=1, answers=1)
    url = service.base_url
    raw = RawClient(url)
    raw.run(metadata={"run_dir": str(tmp_path / "elsewhere" / "trained-here")})
    raw.run(metadata={"run_dir": str(tmp_path)})  # no run directory itself
    runs = {run["name"]: run for run in httpx.get(f"{url}/watch/api/runs").json()["runs"]}
    assert runs.keys() == {"mine", "trained-here"}
    found = httpx.get(f"{url}/watch/api/runs/{runs['trained-here']['id']}/metrics")
    assert found.json()["steps"] == [1]
