"""Train a reward model from preference pairs, on the service itself.

The model reads a request and an answer and is asked whether the answer is good. Its score is the
logit of "yes" against "no" at that point, trained with the Bradley-Terry loss
``-log sigmoid(score(chosen) - score(rejected))``.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mint.rewards.reward import SingleReward
from mint.rewards.score import Sample, Score

if TYPE_CHECKING:
    from mint.client import SamplingClient, ServiceClient, TrainingClient

_QUESTION = "Request:\n{prompt}\n\nAnswer:\n{response}\n\nIs the answer good?"
_YES, _NO = " yes", " no"
_LONGEST = 2048


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, of which one was preferred."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class TrainedRewardModel:
    """A trained reward model: where it is saved, and how well it predicts held-out pairs."""

    model: RewardModel
    path: str
    accuracy: float | None
    losses: tuple[float, ...]


class Asked:
    """The tokens of a question that ends where the model would say yes or no."""

    def __init__(self, tokenizer: Any) -> None:
        yes, no = (list(tokenizer.encode(w, add_special_tokens=False)) for w in (_YES, _NO))
        shared = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if shared is None:
            raise ValueError("This tokenizer encodes ' yes' and ' no' as the same token.")
        self._tokenizer, self._lead = tokenizer, yes[:shared]
        self.yes, self.no = yes[shared], no[shared]

    def tokens(self, prompt: str, response: str) -> list[int]:
        """Return the tokens of the question about an answer; the last part if they are too many."""
        text = _QUESTION.format(prompt=prompt, response=response)
        return [*self._tokenizer.encode(text), *self._lead][-_LONGEST:]


class RewardModel(SingleReward):
    """A trained reward model as a reward from 0 to 1; the logit is kept as a component."""

    name = "reward_model"

    def __init__(self, client: SamplingClient) -> None:
        self._client = client
        self._asked = Asked(client.get_tokenizer())

    @classmethod
    def load(cls, service: ServiceClient, path: str) -> RewardModel:
        """Return the reward model that was saved at ``path``."""
        return cls(service.create_sampling_client(model_path=path))

    async def score_one(self, sample: Sample) -> Score:
        from tinker import types

        tokens = self._asked.tokens(sample.prompt, sample.response)
        yes, no = await asyncio.gather(
            *(
                self._client.compute_logprobs_async(types.ModelInput.from_ints([*tokens, word]))
                for word in (self._asked.yes, self._asked.no)
            )
        )
        if yes[-1] is None or no[-1] is None:
            raise RuntimeError("The service returned no logprob for the last token.")
        logit = yes[-1] - no[-1]
        return Score(1 / (1 + math.exp(-max(-700.0, logit))), {"logit": logit})

    def accuracy(self, pairs: Sequence[Preference]) -> float:
        """Return the share of pairs whose chosen answer scores higher; a tie counts as half."""
        chosen = [Sample(pair.chosen, pair.prompt) for pair in pairs]
        rejected = [Sample(pair.rejected, pair.prompt) for pair in pairs]
        scores = [score.components["logit"] for score in self.score([*chosen, *rejected]) if score]
        better, worse = scores[: len(pairs)], scores[len(pairs) :]
        won = [(a > b) + 0.5 * (a == b) for a, b in zip(better, worse, strict=True)]
        return sum(won) / len(won)


def train_reward_model(
    client: TrainingClient,
    pairs: Sequence[Preference],
    held_out: Sequence[Preference] = (),
    name: str = "reward-model",
    epochs: int = 1,
    batch: int = 8,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> TrainedRewardModel:
    """Train a reward model on preference pairs, save it, and test it on held-out ones.

    ``client`` is a fresh ``create_lora_training_client(...)``.
    """
    if not pairs or batch < 1 or epochs < 1:
        raise ValueError("train_reward_model() needs pairs, batch >= 1 and epochs >= 1.")
    from tinker import types

    asked = Asked(client.get_tokenizer())
    adam = types.AdamParams(learning_rate=learning_rate)
    draw, order, losses = random.Random(seed), list(pairs), []
    for _ in range(epochs):
        draw.shuffle(order)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            datums = [datum for pair in chosen for datum in _datums(asked, pair)]
            backward = client.forward_backward_custom(datums, bradley_terry_loss)
            update = client.optim_step(adam)
            losses.append(backward.result().metrics["loss:sum"] / len(chosen))
            update.result()
    path = client.save_weights_for_sampler(name).result().path
    model = RewardModel(client.create_sampling_client(path))
    accuracy = model.accuracy(held_out) if held_out else None
    return TrainedRewardModel(model, path, accuracy, tuple(losses))


def bradley_terry_loss(_: Sequence[Any], logprobs: Sequence[Any]) -> tuple[Any, dict[str, float]]:
    """Return the loss of pairs, four datums each: chosen yes and no, rejected yes and no.

    ``log(1 + exp(-margin))`` in a form that cannot overflow, with tensor methods only.
    """
    ends = [values[-1] for values in logprobs]
    losses, right = [], 0
    for yes, no, rejected_yes, rejected_no in zip(*(ends[i::4] for i in range(4)), strict=True):
        margin = (yes - no) - (rejected_yes - rejected_no)
        losses.append((-margin).clamp(min=0) + (-margin.abs()).exp().log1p())
        right += bool(margin > 0)
    return sum(losses), {"accuracy:mean": right / len(losses)}


def _datums(asked: Asked, pair: Preference) -> list[Any]:
    from tinker import types

    datums = []
    for response in (pair.chosen, pair.rejected):
        tokens = asked.tokens(pair.prompt, response)
        for word in (asked.yes, asked.no):
            targets = [*tokens[1:], word]
            inputs: Any = {"target_tokens": targets, "weights": [0.0] * len(targets)}
            datums.append(
                types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)
            )
    return datums
