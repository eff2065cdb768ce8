"""docs/agents.md: an environment can be written from the page alone, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mint
from mint.rl import parse_tool_calls, rehearse
from mint.watch.directory.recorder import METRICS, read_rows
from tests.rl.messages.templates import FAMILIES
from tests.service_fixture import MODEL

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
SETTINGS = {
    "MINT_BASE_MODEL": MODEL,
    "MINT_LORA_RANK": "4",
    "MINT_RL_STEPS": "1",
    "MINT_RL_BATCH": "2",
    "MINT_RL_GROUP": "2",
    "MINT_RL_MAX_TOKENS": "4",
    "MINT_RL_TRUNCATION_LIMIT": "1",
}


def test_every_example_of_the_page_runs_in_order(
    client: mint.ServiceClient, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MINT_RL_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("MINT_BASE_URL", service)
    monkeypatch.setenv("MINT_API_KEY", "tml-rl")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/agents.md", "exec"), names)
    assert str(names["path"]).startswith("tinker://")
    assert len(read_rows(tmp_path / "run" / METRICS)) == 1


def test_the_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, heading = target.partition("#")
        assert not file or (ROOT / "docs" / file).exists(), target
        found = [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in HEADINGS]
        assert not heading or heading in found, target


HEADINGS = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)


class Echo:
    def build_dataset(self) -> list[str]:
        return ["a"]

    async def rollout(self, task: str, chat: mint.rl.Chat) -> float:
        chat.user(task)
        reply = await chat.reply(max_tokens=8)
        if reply.truncated:
            raise ValueError("too long")
        return float(reply.text == task)


def test_a_rehearsal_raises_what_the_environment_raises() -> None:
    assert rehearse(Echo(), "a", ["a"]).reward == 1.0
    assert rehearse(Echo(), "a", ["b"]).reward == 0.0
    with pytest.raises(RuntimeError, match="The rollout failed: ValueError: too long"):
        rehearse(Echo(), "a", ["far too long"])
    with pytest.raises(RuntimeError, match="asked for more replies"):
        rehearse(Echo(), "a", [])


@pytest.mark.parametrize("name", ["qwen2", "granite", "phi4-mini"])
def test_a_rehearsal_renders_by_a_models_template(name: str) -> None:
    family = FAMILIES[name]
    rollout = rehearse(Echo(), "a", ["a"], tokenizer=family.tokenizer())
    assert family.ends[0] in family.tokenizer().decode(rollout.segments[0].tokens)
    assert parse_tool_calls(rollout.text) == []
