"""Test an environment without a model: with prepared replies, and everything else real."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from mint import types
from mint.rl.agents.environment import Environment, run_environment
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import Rollout
from mint.rl.settings.config import RLConfig


class ByteTokenizer:
    """A tokenizer of bytes, without a chat template: messages are ``Role: content`` lines."""

    eos_token_id = 256
    all_special_ids = (256,)
    chat_template: str | None = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def rehearse(
    environment: Environment,
    task: Any,
    replies: Sequence[str],
    cfg: RLConfig | None = None,
    tokenizer: Any = None,
) -> Rollout:
    """Return the rollout of an environment in which the model says ``replies``.

    Needs no service and no model. With a model's ``tokenizer``, its chat template renders the
    messages. What the environment raises is raised.

    >>> class Greeting:
    ...     def build_dataset(self): return ["Ann"]
    ...     async def rollout(self, task, chat):
    ...         chat.user(f"Greet {task}.")
    ...         return float(task in (await chat.reply()).text)
    >>> rehearse(Greeting(), "Ann", ["Hello Ann!"]).reward
    1.0
    """
    tokenizer = tokenizer or ByteTokenizer()
    cfg = cfg or RLConfig(max_tokens=4096)
    waiting = iter(replies)

    async def sample(prompt: Any, num_samples: int, sampling_params: types.SamplingParams) -> Any:
        text = next(waiting, None)
        if text is None:
            raise RuntimeError(
                "The environment asked for more replies than were passed to rehearse(). Add one."
            )
        said = list(tokenizer.encode(text, add_special_tokens=False))
        limit = sampling_params.max_tokens or len(said) + 1
        tokens = [*said, tokenizer.eos_token_id][:limit]
        reason = "stop" if len(tokens) > len(said) else "length"
        answer = SimpleNamespace(tokens=tokens, logprobs=[0.0] * len(tokens), stop_reason=reason)
        return SimpleNamespace(sequences=[answer])

    client: Any = SimpleNamespace(sample_async=sample)
    policy = Policy(client, tokenizer, 1.0, cfg.max_tokens, cfg.stop)
    rollout = asyncio.run(run_environment(environment, task, policy, cfg, seed=0))
    if rollout.error is not None:
        raise RuntimeError(f"The rollout failed: {rollout.error}")
    return rollout
