"""The dashboard in a real browser. One browser and one server for all tests; nothing sleeps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import mint.watch
from benchmarks.watch.generate import append, generate
from mint.watch.dashboard.bundle import write_bundle
from mint.watch.dashboard.run_index import DEMO
from tests.needs import need_browser
from tests.watch.dashboard.browser_checks import problems_of

PATIENCE_MS = 60_000
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
BIDI = "left \u202eright\u202c \u2066isolated\u2069 \u0000 end"
RECORDED = "learning-to-add"
LONG = "<b>long</b> " + "x" * 1_000_000

pytestmark = pytest.mark.timeout(300)


@dataclass
class Dashboard:
    """A running ``mint watch``: where it is, and its folder of runs."""

    url: str
    folder: Path


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("watched")
    generate(folder / "first", steps=12, groups=8, answers=4)
    generate(folder / "second", steps=12, groups=8, answers=4, seed=1)
    generate(folder / "live", steps=3, planned=8, status="running")
    extra = [{"response": HOSTILE, "prompt": HOSTILE, "identity": HOSTILE}]
    extra += [{"response": BIDI, "reasons": {"<i>why</i>": HOSTILE}}, {"response": LONG}]
    generate(folder / "hostile", steps=2, groups=2, answers=2, extra=extra)
    shutil.copytree(DEMO / RECORDED, folder / RECORDED)
    record_hostile_names(folder / "names")
    record_failure(folder / "stopped")
    with watching(folder) as url:
        yield Dashboard(url, folder)


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """Run ``mint watch`` on a folder; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mint.cli", "watch", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert ready.startswith("mint watch is ready at http://127.0.0.1:"), ready
    yield ready.split()[-1]
    process.terminate()
    process.wait(30)


def record_hostile_names(path: Path) -> None:
    """Record a run whose names and settings are hostile too: of roles, tools, metrics, events."""
    name = HOSTILE + BIDI
    record = mint.watch.record(path, {"task": name, "base_model": name, "stop": [name], name: LONG})
    call = {"name": name, "arguments": {name: name}}
    talk = [{"role": name, "content": name}, {"role": "tool", "name": LONG, "content": LONG}]
    talk += [{"role": "assistant", "content": name, "tool_calls": [call]}]
    answer = {"prompt": name, "response": name, "stop": name, "messages": talk, "reward": 0.5}
    answer |= {"components": {name: 0.5, "c" * 3000: 1.0}, "reasons": {name: LONG}, "error": LONG}
    for step in (1, 2):
        record.step({name: 1.0, "reward/mean": 0.5}, rollouts=[answer, {**answer, "reward": 1.0}])
        record.event("finding", name=name, text=name + LONG, step=step)
        record.event(name, text=name, step=step)
    record.close()
    summary = json.loads((path / "summary.json").read_text())
    summary |= {
        "name": f"names {name}" + "n" * 3000,
        "verdict": {"verdict": name, "evidence": LONG},
    }
    (path / "summary.json").write_text(json.dumps(summary))


def record_failure(path: Path) -> None:
    """Record a run whose reward failed for every answer of its first step."""
    record = mint.watch.record(path, {"task": "chat", "steps": 5})
    prompts = [f"<|im_start|>user\n{who} has 2 apples." for who in ("Ann", "Bob")]
    answer = {"step": 1, "index": 0, "response": "4", "error": "E"}
    rows = [{**answer, "group": n, "prompt": each} for n, each in enumerate(prompts)]
    record.directory.rollouts(rows)
    record.event("stopped", name="reward_errors", text="Both rewards failed.")
    record.close("failed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = need_browser()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that fails its test when a script fails or the policy is broken."""
    options = getattr(request, "param", {})
    size = {"width": 1280, "height": 900}
    context = browser.new_context(**{"viewport": size, "reduced_motion": "reduce", **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    page.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
    yield page
    context.close()
    assert problems == []


@pytest.fixture(autouse=True, scope="module")
def patience() -> None:
    expect.set_options(timeout=PATIENCE_MS)


def opened(page: Page, dashboard: Dashboard, run: str, *view: str) -> str:
    """Open a view of a run by its address, and return the run's id."""
    answer = page.request.get(f"{dashboard.url}/api/runs").json()
    found = next(each["id"] for each in answer["runs"] if each["name"] == run)
    page.goto(f"{dashboard.url}/#/" + "/".join(["run", found, *view]))
    expect(page.locator("h1")).to_contain_text(run)
    return str(found)


def test_the_first_screen_says_which_runs_learn(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.url)
    card = page.locator("li.run", has=page.get_by_role("link", name="first", exact=True))
    expect(card.locator(".verdict .words")).to_contain_text(re.compile("finished", re.I))
    expect(card.locator(".verdict .evidence")).not_to_be_empty()
    expect(card.get_by_text("Do next")).to_be_visible()
    expect(card.get_by_role("img", name=re.compile("Success rate from"))).to_be_visible()
    card.get_by_role("link", name="first", exact=True).click()
    expect(page.get_by_role("img", name=re.compile(r"^Reward\. "))).to_be_visible()
    expect(page.locator(".chart")).to_have_count(14)
    for curve in (r"^Entropy\. exact: .*estimate: ", r"^Clipped tokens\. "):
        expect(page.get_by_role("img", name=re.compile(curve))).to_be_visible()
    expect(page.locator(".events li.finding")).to_contain_text("truncation")


def test_a_recorded_run_names_the_weights_to_use_and_shows_metrics_of_older_names(
    page: Page, dashboard: Dashboard
) -> None:
    opened(page, dashboard, RECORDED)
    expect(page.locator(".verdict")).to_contain_text(
        "Use the checkpoint of step 25: it is the best"
    )
    expect(page.get_by_role("img", name=re.compile(r"^Staleness\. "))).to_be_visible()
    expect(page.locator(".events li.data")).to_have_text(
        re.compile(r"^\s*Data every step uses the")
    )


def test_steps_appear_as_they_are_written(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "live")
    expect(page.locator(".title .sub")).to_contain_text("step 3 of 8")
    page.evaluate("window.same = true")
    whole: list[str] = []
    page.on("request", lambda r: whole.append(r.url) if r.url.endswith("/metrics") else None)
    append(dashboard.folder / "live", 4, 8)
    expect(page.locator(".title .sub")).to_contain_text("step 4 of 8")
    expect(page.get_by_role("img", name=re.compile(r"^Reward\. .* at 4"))).to_be_visible()
    assert page.evaluate("window.same") is True
    assert whole == []  # increments only: none of them asked for everything


def test_from_a_point_of_a_curve_to_a_token(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "first")
    plot = page.get_by_role("img", name=re.compile(r"^Reward\. ")).locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.click(position={"x": box["width"] * 0.55, "y": box["height"] / 2})
    expect(page.locator(".view-name")).to_have_text("Step 7")
    page.locator(".heat tbody tr").nth(1).locator("a.cell").nth(2).click()
    expect(page.locator(".view-name")).to_have_text("Step 7, group 2, answer 3")
    expect(page.locator(".components")).to_contain_text("exact")
    coloured = page.locator(".token.coloured")
    expect(coloured.first).to_be_visible()
    expect(page.locator(".token.given.coloured")).to_have_count(0)
    page.get_by_role("radio", name="trainer − sampler").check()
    coloured.nth(1).hover()
    expect(page.locator(".picked")).to_contain_text("trainer − sampler")
    page.get_by_role("radio", name="entropy").check()
    expect(page.get_by_text("strong is uncertain")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Scale from 0"))).to_be_visible()
    expect(coloured.first).to_have_attribute("style", re.compile("--token"))
    expect(page.locator(".picked")).to_contain_text(re.compile(r"entropy \d"))
    page.locator(".token.given").first.hover()
    expect(page.locator(".picked")).to_contain_text(": not sampled")


def test_a_curve_zooms_and_goes_back(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "first")
    page.get_by_label("From step").fill("4")
    page.get_by_label("From step").press("Enter")
    whole = page.get_by_role("button", name="Whole run")
    expect(whole).to_be_enabled()
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.6")
    whole.click()
    expect(page.get_by_label("From step")).to_have_value("1")


def test_a_bar_of_the_histogram_filters_the_answers(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "first", "step", "2")
    expect(page.locator("a.cell")).to_have_count(32)
    bar = page.locator(".histogram button:enabled").first
    expected = int(re.findall(r"\d+", bar.get_attribute("aria-label") or "")[0])
    bar.click()
    expect(bar).to_have_attribute("aria-pressed", "true")
    expect(page.locator("a.cell:not(.dim)")).to_have_count(expected)
    bar.click()
    expect(page.locator("a.cell.dim")).to_have_count(0)


def test_groups_without_signal_are_marked_and_a_group_opens(
    page: Page, dashboard: Dashboard
) -> None:
    opened(page, dashboard, "first", "step", "12")
    expect(page.locator(".heat tr.silent .badge").first).to_have_text("no signal")
    page.locator(".heat tbody th a").first.click()
    expect(page.locator(".side article")).to_have_count(4)
    page.get_by_role("link", name="This prompt over all steps").click()
    expect(page.locator(".view-name")).to_have_text("One prompt over the steps")
    expect(page.locator(".diff")).to_be_visible()


def test_a_prompt_has_its_answers_in_time(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "first", "prompts")
    page.locator(".list tbody a").first.click()
    expect(page.locator(".timeline li").nth(1)).to_be_visible()
    page.get_by_label("After: step").select_option(index=0)
    expect(page.locator(".diff")).to_be_visible()


def test_a_search_finds_and_exports(page: Page, dashboard: Dashboard) -> None:
    run = opened(page, dashboard, "first", "search")
    page.get_by_label("Regular expression").fill(r"= 1\d\d$")
    page.get_by_label("from").first.fill("0.9")
    page.get_by_role("button", name="Search").click()
    rows = page.locator(".hits tbody tr")
    expect(rows.first).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"^\d+ samples"))
    for kind in ("JSONL", "Parquet", "CSV"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"{run}.{kind.lower()}"
    with page.expect_download() as download:
        page.get_by_role("button", name="JSONL").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == rows.count()
    assert all(re.search(r"= 1\d\d$", json.loads(line)["response"]) for line in lines)
    page.get_by_label("Regular expression").fill("(")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("alert")).to_contain_text("regular expression")


def test_runs_are_compared(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.url)
    page.get_by_label("Choose first for a comparison").check()
    page.get_by_label("Choose second for a comparison").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    chart = page.get_by_role("img", name=re.compile(r"^reward.mean\. .*first: .*second: "))
    expect(chart).to_be_visible()
    settings = page.get_by_role("row", name=re.compile("learning_rate"))
    expect(settings).to_contain_text("0.0002")
    expect(settings).to_contain_text("0.0004")
    for axis in ("trained tokens", "hours"):
        page.get_by_label("Along").select_option(label=axis)
        expect(chart).to_be_visible()


def test_a_sample_is_copied_in_three_ways(browser: Browser, dashboard: Dashboard) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    opened(page, dashboard, "first", "sample", "2", "7", "0")
    copied = {}
    for name in ("JSON", "test case", "command"):
        page.get_by_role("button", name=f"Copy as {name}").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied[name] = page.evaluate("navigator.clipboard.readText()")
        expect(page.get_by_role("button", name=f"Copy as {name}")).to_be_visible()
    row = json.loads(copied["JSON"])
    assert row["segments"][0]["tokens"]
    scope: dict[str, object] = {"my_reward": lambda response, prompt: row["reward"]}
    exec(copied["test case"], scope)
    test = scope["test_reward_of_a_recorded_answer"]
    assert callable(test)
    test()
    assert copied["command"].startswith("mint sample --model 'tinker://run/final'")
    assert copied["command"].endswith(f"'{row['prompt']}'")
    opened(page, dashboard, RECORDED, "sample", "20", "0", "0")
    page.get_by_role("button", name="Copy as command").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert words[:3] == ["mint", "sample", "--model"]
    assert re.fullmatch(r"tinker://[^ ]+/sampler_weights/rl-final", words[3])
    asked = ["--raw", "--temperature", "0.8", "--max-tokens", "8", "--stop", "\n"]
    assert words[4:-1] == asked
    assert words[-1].endswith("A:")
    context.close()


# ---- accessibility ----


def test_the_keyboard_is_enough(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.url)
    link = page.get_by_role("link", name="first", exact=True)
    expect(link).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tabs_until(page, lambda: link.evaluate("e => e === document.activeElement"))
    page.keyboard.press("Enter")
    plot = page.get_by_role("img", name=re.compile(r"^Reward\. "))
    expect(plot).to_be_visible()
    tabs_until(page, lambda: plot.evaluate("e => e === document.activeElement"))
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("figcaption").first).to_have_attribute("data-at", "at 3")
    page.keyboard.press("Enter")
    expect(page.locator(".view-name")).to_have_text("Step 3")
    page.keyboard.press("]")
    expect(page.locator(".view-name")).to_have_text("Step 4")
    first_cell = page.locator("a.cell").first
    expect(first_cell).to_have_attribute("href", re.compile("/sample/4/0/0$"))
    tabs_until(page, lambda: first_cell.evaluate("e => e === document.activeElement"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".view-name")).to_have_text("Step 4, group 2, answer 2")
    expect(page.locator(".components")).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".view-name")).to_have_text("Step 4, group 2, answer 3")
    expect(page.locator(".stale")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()


def tabs_until(page: Page, reached: Callable[[], bool]) -> None:
    for _ in range(80):
        if reached():
            return
        page.keyboard.press("Tab")
    raise AssertionError("Tab does not get there")


VIEWS = [
    (),
    ("step", "2", "group", "1"),
    ("sample", "2", "7", "0"),
    ("prompts",),
    ("search",),
    ("settings",),
]


@pytest.mark.parametrize(
    "page",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"viewport": {"width": 390, "height": 800}, "has_touch": True},
    ],
    indirect=True,
    ids=["light", "dark", "narrow"],
)
def test_every_view_is_accessible(page: Page, dashboard: Dashboard) -> None:
    found = {}
    page.goto(dashboard.url)
    expect(page.locator("li.run")).to_have_count(7)
    found["runs"] = problems_of(page)
    for view in VIEWS:
        opened(page, dashboard, "first", *view)
        expect(page.locator(".loading")).to_have_count(0)
        found["/".join(view) or "curves"] = problems_of(page)
    page.goto(f"{dashboard.url}/#/")
    ids = [run["id"] for run in page.request.get(f"{dashboard.url}/api/runs").json()["runs"]]
    page.goto(f"{dashboard.url}/#/compare/{ids[0]},{ids[1]}")
    expect(page.locator(".chart").first).to_be_visible()
    found["compare"] = problems_of(page)
    assert {view: each for view, each in found.items() if each} == {}


# ---- untrusted text ----


def test_hostile_texts_are_shown_as_texts(page: Page, dashboard: Dashboard) -> None:
    run = opened(page, dashboard, "hostile", "step", "2")
    expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    page.goto(f"{dashboard.url}/#/run/{run}/sample/2/2/0")
    expect(page.locator(".message.answer")).to_contain_text(HOSTILE)
    page.goto(f"{dashboard.url}/#/run/{run}/sample/2/2/1")
    expect(page.locator(".message.answer")).to_contain_text("left U+202Eright")
    expect(page.locator(".message.answer .control")).to_have_count(5)
    expect(page.locator(".components")).to_contain_text("<i>why</i>")
    page.goto(f"{dashboard.url}/#/run/{run}/search")
    page.get_by_label("Text", exact=True).fill("onerror")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".hits tbody tr")).to_have_count(1)
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("main img, main script, main b, .components i").count() == 0


@pytest.mark.parametrize(
    "page", [{}, {"viewport": {"width": 390, "height": 800}}], indirect=True, ids=["wide", "narrow"]
)
def test_hostile_names_are_shown_as_texts_too(page: Page, dashboard: Dashboard) -> None:
    runs = page.request.get(f"{dashboard.url}/api/runs").json()["runs"]
    run = next(each["id"] for each in runs if each["name"].startswith("names "))
    views = ["", "/step/2/group/0", "/sample/2/0/0", "/prompts", "/search", "/settings"]
    found = {}
    for view in ["", *(f"#/run/{run}{view}" for view in views), f"#/compare/{run},{runs[0]['id']}"]:
        page.goto(f"{dashboard.url}/{view}")
        expect(page.locator("main")).to_contain_text("U+202E")
        expect(page.locator(".loading")).to_have_count(0)
        found[view] = problems_of(page)
        assert "\u202e" not in page.locator("body").inner_text()
        assert page.locator("main img, main script, main b, main i:not(.scale i)").count() == 0
    assert {view: each for view, each in found.items() if each} == {}
    assert page.evaluate("window.hacked === undefined")


def test_a_folder_without_runs_shows_a_script_that_records_one(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with watching(tmp_path / "runs") as url:
        page.goto(url)
        exec(page.locator(".empty pre").nth(1).inner_text(), {"mint": mint})
        expect(page.locator("li.run h2")).to_have_text("x")


def test_a_run_that_failed_at_its_first_step_shows_why(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "stopped")
    expect(page.locator(".verdict")).to_contain_text("the run ended: Both rewards failed.")
    expect(page.locator(".events")).to_contain_text("Both rewards failed.")
    expect(page.locator("main")).not_to_contain_text("appear here as they are written")
    assert problems_of(page) == []
    opened(page, dashboard, "stopped", "step", "1")
    expect(page.locator(".lead")).to_contain_text("none of their answers has a reward")
    names = page.locator(".heat tbody th").all_inner_texts()
    assert names == ["… Ann has 2 apples.", "… Bob has 2 apples."]


@pytest.mark.parametrize("address", ["#/nothing", "#/run/first/nothing", "#/run/absent/step/1"])
def test_a_wrong_address_says_so(page: Page, dashboard: Dashboard, address: str) -> None:
    page.goto(f"{dashboard.url}/{address}")
    said = page.get_by_text(re.compile("No such page|There is no run"))
    expect(said.first).to_be_visible()
    assert problems_of(page) == []


def test_a_megabyte_of_text_is_truncated_until_it_is_requested(
    page: Page, dashboard: Dashboard
) -> None:
    opened(page, dashboard, "hostile", "sample", "2", "2", "2")
    answer = page.locator(".message.answer .text")
    expect(answer).to_contain_text("<b>long</b>")
    assert len(answer.inner_text()) < 30_000
    page.get_by_role("button", name=re.compile("Show all 1,000,012 characters")).click()
    expect(page.get_by_role("button", name=re.compile("Show all"))).to_have_count(0)
    assert answer.evaluate("e => e.textContent.length") >= 1_000_000


# ---- bundles ----


def test_a_bundle_opens_without_a_server(page: Page, dashboard: Dashboard, tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    told = write_bundle([dashboard.folder / "first"], target, 8 * 1024 * 1024)
    assert "12 of 12 steps" in told
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(target.as_uri())
    page.get_by_role("link", name="first", exact=True).click()
    expect(page.get_by_role("img", name=re.compile(r"^Reward\. "))).to_be_visible()
    page.get_by_role("link", name="Steps").click()
    page.locator("a.cell").nth(1).click()
    expect(page.locator(".token.coloured").first).to_be_visible()
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Text", exact=True).fill("= 1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".hits tbody tr").first).to_contain_text("step 1, ")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export JSONL").click()
    exported = Path(download.value.path()).read_text().splitlines()
    assert len(exported) == page.locator(".hits tbody tr").count()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert str(dashboard.folder) not in target.read_text()
