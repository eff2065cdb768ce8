"""Train on an unmodified environment of the `verifiers` package.

    python demos/rl/verifiers_bridge.py [NAME]

NAME is `sums` or `shop`, both in demos/rl/environments, or the name of an installed environment. It
needs `pip install 'verifiers<0.4'`; later versions have a different kind of environment.

Such an environment asks a client for the model's replies. Here the client is `chat`, which keeps
the exact tokens that were sampled. Messages of the environment are never trained on. The
environment decides when a conversation ends, and its rubric computes the reward.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import verifiers as vf
from rl_core import RLConfig, run_grpo

from mint.rewards import Score
from mint.rl import Chat, ContextFull, Reply, TurnLimit, parse_tool_calls


class ChatClient(vf.Client):
    """The client through which an environment of verifiers reaches the policy."""

    def setup_client(self, config: vf.ClientConfig) -> Chat:
        raise TypeError("A ChatClient is created from a chat, not from a configuration.")

    async def to_native_tool(self, tool: vf.Tool) -> dict[str, Any]:
        fields = tool.model_dump(include={"name", "description", "parameters"})
        return {"type": "function", "function": fields}

    async def to_native_prompt(self, messages: vf.Messages) -> tuple[list[dict[str, str]], dict]:
        return [{"role": m["role"], "content": as_text(m)} for m in messages], {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
    ) -> Reply:
        stop, limit = sampling_args.get("stop"), sampling_args.get("max_tokens")
        stops = [stop] if isinstance(stop, str) else stop
        if tools:
            self.client.use_tools(tools)
        try:
            return await self.client.complete(prompt, max_tokens=limit, stop=stops)
        except (ContextFull, TurnLimit) as error:  # ends the conversation, which is then scored
            raise vf.OverlongPromptError(str(error)) from error

    async def raise_from_native_response(self, response: Reply) -> None:
        """Accept every reply of the model, also an empty one."""

    async def from_native_response(self, response: Reply) -> vf.Response:
        turn = f"turn-{self.client.turns}"
        calls = [
            vf.ToolCall(id=f"{turn}-{i}", name=c.name, arguments=c.error or json.dumps(c.arguments))
            for i, c in enumerate(response.tool_calls)
        ]
        message = vf.ResponseMessage(
            content=response.text,
            tool_calls=calls or None,
            finish_reason="length" if response.truncated else "tool_calls" if calls else "stop",
            is_truncated=response.truncated,
        )
        return vf.Response(id=turn, created=0, model="policy", message=message)

    async def close(self) -> None:
        """Do nothing: the chat ends with its rollout."""


def as_text(message: vf.Message) -> str:
    """Return the text of a message, with an example's separate tool calls written out."""
    text = message.get("content") or ""
    if not isinstance(text, str):
        if any(part["type"] != "text" for part in text):
            raise ValueError("The environment sends images or audio; a chat supports text only.")
        text = "".join(part["text"] for part in text)
    calls = [] if parse_tool_calls(text) else message.get("tool_calls") or []
    form = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
    return text + "".join(form.format(call["name"], call["arguments"]) for call in calls)


class VerifiersEnvironment:
    """An environment of verifiers, as an environment for `run_grpo`."""

    def __init__(self, environment: vf.Environment) -> None:
        if environment.requires_group_rollouts:
            raise ValueError(
                "The environment's rubric compares the answers of a group, but here each is scored "
                "separately. Use a rubric whose functions score one answer."
            )
        self.environment = environment
        self.name = environment.env_id
        self.tasks = environment.get_dataset().to_list()

    def build_dataset(self) -> list[dict[str, Any]]:
        return random.sample(self.tasks, len(self.tasks))

    def build_holdout(self) -> list[dict[str, Any]]:
        return list(self.environment.build_eval_dataset() or [])

    async def rollout(self, task: dict[str, Any], chat: Chat) -> Score:
        env = self.environment
        state = await env.rollout(task, ChatClient(chat), "policy", env.sampling_args)
        try:
            if error := state["error"]:
                raise error.__cause__ or error
            await env.rubric.score_rollout(state)
        finally:
            await env.rubric.cleanup(state)
        return Score(state["reward"], state["metrics"])

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        print(f"Step {step}: reward={mean:.3f}, datums={num_datums}", flush=True)


def main(name: str) -> str:
    sys.path.append(str(Path(__file__).with_name("environments")))
    environment = VerifiersEnvironment(vf.load_environment(name))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # verifiers replaces it when imported
    cfg = RLConfig.from_env({"MINT_RL_MAX_TOKENS": "48", **os.environ})
    return run_grpo(environment, cfg)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sums")
