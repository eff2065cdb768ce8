"""A model that gives scripted replies."""

from __future__ import annotations

from typing import Any

import numpy as np

from mint import types
from mint.rl import Chat
from mint.rl.rollouts.policy import Policy


class Script:
    """In place of the service's sampling client: says its turns one after the other."""

    def __init__(self, *turns: tuple[list[int], str]) -> None:
        self.turns = iter(turns)
        self.read: list[list[int]] = []
        self.stops: list[Any] = []

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        self.read.append(prompt.to_ints())
        self.stops.append(sampling_params.stop)
        tokens, reason = next(self.turns)
        said = types.SampledSequence(
            stop_reason=reason,  # type: ignore[arg-type]
            sequence_id="0",
            tokens_np=np.asarray(tokens),
            logprobs_np=-1.0 - np.arange(len(tokens)),
        )
        return types.SampleResponse(sequences=[said])


def encoded(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def begun(tokenizer: Any, *turns: tuple[str, str]) -> tuple[Chat, Script]:
    """A chat with a model that will say these things, each ended by "stop" or by "length"."""
    script = Script(*((encoded(tokenizer, text), reason) for text, reason in turns))
    return Chat(Policy(script, tokenizer, 1.0, 64)), script  # type: ignore[arg-type]
