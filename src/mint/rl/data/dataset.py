"""Your own data as a task: prompts, gold answers and metadata from the rows of a file.

    from mint.rl import DatasetTask, RLConfig, run_grpo

    run_grpo(DatasetTask("train.jsonl"), RLConfig(steps=20))

On the command line it is ``mint train task=jsonl task.arguments.file=train.jsonl``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.rewards import Reward, as_reward, check_answer
from mint.rewards.registry import RewardNotFound
from mint.rewards.reward import FunctionReward, RewardLike
from mint.rewards.signature import SignatureError
from mint.rl.data.columns import ANSWER, Columns, Problem
from mint.rl.data.file_formats import DataError, Row, read_rows, setting
from mint.rl.rollouts.scoring import score_samples
from mint.rl.settings.config import short_hash
from mint.rl.task import RLAdapter


class DatasetTask(RLAdapter):
    """Problems from a file: JSONL, JSON, CSV, Parquet, or a Hugging Face dataset folder.

    A prompt comes from ``prompt_column``, or is a ``template`` with columns in it
    (``"Q: {question}\\\\nA:"``), or a whole conversation from ``messages_column``. It is sent
    through the model's chat template, with ``chat=False`` as plain text. ``system_prompt`` is the
    same for all rows; ``system_column`` holds one for each. The first ``shots`` rows are shown in
    every prompt as solved examples, and are not trained on.

    The ``reward`` is any of :mod:`mint.rewards` (a function, a name, ``file.py:function``); by
    default :func:`mint.rewards.check_answer` with the gold answers of ``answer_column``. It sees
    every column as metadata, and the gold answer as ``answer``.

    Evaluation uses the rows of ``holdout_file`` (or ``holdout_split`` of a folder), or else the
    share ``holdout_fraction`` of the settings.
    """

    def __init__(
        self,
        file: str | Path,
        prompt_column: str | None = None,
        answer_column: str | None = None,
        messages_column: str | None = None,
        system_column: str | None = None,
        system_prompt: str | None = None,
        template: str | None = None,
        chat: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        shots: int = 0,
        split: str | None = None,
        holdout_file: str | Path | None = None,
        holdout_split: str | None = None,
        reward: RewardLike | None = None,
    ) -> None:
        given = dict(locals())
        for name in ("file", "holdout_file"):
            _check_type(name, given[name], (str, Path), "the path of a file")
        for name in ("prompt_column", "answer_column", "messages_column", "system_column"):
            _check_type(name, given[name], str, "the name of a column")
        for name in ("system_prompt", "template", "split", "holdout_split"):
            _check_type(name, given[name], str, "a string")
        _check_type("chat", chat, bool, "true or false")
        mapping = "a mapping, as in {enable_thinking: false}"
        _check_type("chat_template_kwargs", chat_template_kwargs, Mapping, mapping)
        if type(shots) is not int or shots < 0:
            raise ConfigError(f"shots is {shots!r}; it must be an integer, 0 or more.")
        self.chat = chat
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.system_prompt = system_prompt
        if messages_column is not None and not chat:
            raise ConfigError(
                "chat=false sends plain text, but messages_column contains conversations."
            )
        rows = read_rows(file, split)
        self.columns = Columns(rows, str(file), given)
        self.reward = self._chosen_reward(reward, str(file))
        problems = self._problems(rows)
        if shots and self.columns.answer is None:
            raise self.columns.no_answer(str(file))
        if len(problems) < shots:
            raise DataError(f"{file} has {len(problems)} rows, too few for shots={shots}.")
        self.examples = problems[:shots]
        self.problems = self._without_examples(problems)
        self.held_out: list[Problem] = []
        if holdout_file is not None or holdout_split is not None:
            self.held_out = self._read_holdout(holdout_file or file, holdout_split)
        if not self.problems:
            raise DataError(
                f"{file} has {len(problems)} rows, and all of them are used as examples. Lower "
                f"{setting('shots', 0)}."
            )
        shown = [[each.messages, each.metadata] for each in (*self.examples, *self.problems)]
        held = [[each.messages, each.metadata] for each in self.held_out]
        parts = [shown, held, len(self.examples), system_prompt, chat, self.chat_template_kwargs]
        digest = short_hash(json.dumps(parts, default=str))  # other data is another task
        self.name = f"{Path(file).resolve().stem} {digest}"

    def _chosen_reward(self, reward: RewardLike | None, file: str) -> Reward:
        given = reward if reward is not None else getattr(self, "other_reward", None)
        if given is None:
            if self.columns.answer is None:
                raise self.columns.no_answer(file)
            given = check_answer
        try:
            return as_reward(given)
        except (RewardNotFound, SignatureError, SyntaxError) as error:
            raise ConfigError(f"reward={given}: {error}") from None

    def _problems(self, rows: Sequence[Row]) -> list[Problem]:
        """Turn rows into problems, and check each."""
        check_gold = getattr(self.reward, "function", None) is check_answer
        problems = [self.columns.problem(row, check_gold) for row in rows]
        signature = self.reward.signature if isinstance(self.reward, FunctionReward) else None
        if signature is not None and signature.kind == "keywords":
            for problem in problems:
                try:
                    signature.arguments(problem.as_sample(""))
                except KeyError as error:  # a field that the reward function requires
                    raise DataError(f"{problem.place}: {error.args[0]}") from None
        return problems

    def _without_examples(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems whose answers the prompts do not show."""
        shown = {self.identity(example) for example in self.examples}
        return [problem for problem in problems if self.identity(problem) not in shown]

    def _read_holdout(self, source: str | Path, split: str | None) -> list[Problem]:
        rows = read_rows(source, split, "holdout_file")
        self.columns.check_same(rows, str(source))
        problems = self._without_examples(self._problems(rows))
        if not problems:
            raise DataError(
                f"{source}: every row is used as an example, so nothing is left to evaluate on."
            )
        return problems

    # ---- what the loop asks for ----

    def build_dataset(self) -> list[Problem]:
        return list(self.problems)

    def build_holdout(self) -> list[Problem]:
        return list(self.held_out)

    def identity(self, sample: Problem) -> str:
        return json.dumps([dict(message) for message in sample.messages], sort_keys=True)

    def make_prompt(self, sample: Problem, tokenizer: Any) -> list[int]:
        if not self.chat:
            return list(tokenizer.encode(self._as_text(sample)))
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "The model has no chat template. To send prompts as plain text, set "
                f"{setting('chat', False)}."
            )
        try:
            text = tokenizer.apply_chat_template(
                self._conversation(sample),
                tokenize=False,
                add_generation_prompt=True,
                **self.chat_template_kwargs,
            )
        except Exception as error:  # whatever the model's template raises
            raise ConfigError(
                f"{sample.place}: the model's chat template rejects these messages: {error}"
            ) from error
        return list(tokenizer.encode(text, add_special_tokens=False))

    def _conversation(self, sample: Problem) -> list[dict[str, Any]]:
        """Return the messages of a prompt: system, solved examples, the problem."""
        own = [dict(message) for message in sample.messages]
        system = [own.pop(0)] if own[0]["role"] == "system" else []
        if not system and self.system_prompt is not None:
            system = [{"role": "system", "content": self.system_prompt}]
        shown = []
        for example in self.examples:
            shown += [dict(each) for each in example.messages if each["role"] != "system"]
            answer = example.metadata[ANSWER]
            text = answer.strip() if isinstance(answer, str) else json.dumps(answer)
            shown.append({"role": "assistant", "content": text})
        return [*system, *shown, *own]

    def _as_text(self, sample: Problem) -> str:
        *before, last = self._conversation(sample)
        text = ""
        for message in before:
            content = str(message["content"])
            if message["role"] == "user":
                text += content if content[-1:].isspace() else f"{content} "
            else:
                text += f"{content}\n\n"
        return text + str(last["content"])

    def compute_reward(self, response: str, sample: Problem) -> Any:
        return self.reward(response, sample.prompt, sample.metadata)

    def compute_rewards(self, responses: Sequence[str], sample: Problem) -> Any:
        return score_samples(self.reward, [sample.as_sample(each) for each in responses])


def _check_type(name: str, value: Any, kind: Any, wanted: str) -> None:
    optional = name not in ("file", "chat")
    if not isinstance(value, kind) and not (optional and value is None):
        raise ConfigError(f"{name} is {value!r}; it must be {wanted}: {setting(name)}.")
    if value == "":
        raise ConfigError(f"{name} is empty; it must be {wanted}: {setting(name)}.")
