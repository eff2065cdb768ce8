"""What a client does with a service, the same for every version; prints what it saw as JSON.

    python client.py tinker URL_OF_THE_SERVICE URL_WHERE_ANSWERS_GET_LOST [SCENARIO ...]

It runs in the environment of the client under test, so it imports nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
import traceback
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

MODEL = "Qwen/Qwen3-8B"
VOCABULARY = 272
PROMPT = [72, 101, 108, 108, 111, 33]

sdk = importlib.import_module(sys.argv[1])
types = sdk.types


def datum(tokens: list[int]) -> Any:
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def adam(learning_rate: float = 0.01) -> Any:
    return types.AdamParams(learning_rate=learning_rate)


BATCH = [datum([*PROMPT, 10]), datum([1, 2, 3, 4])]


class Scenarios:
    """Each method is one thing people do; what it returns is what the test looks at."""

    def __init__(self, service: Any, lossy_service: Callable[[], Any]) -> None:
        self.service = service
        self.lossy_service = lossy_service

    def new_run(self, service: Any | None = None) -> Any:
        return (service or self.service).create_lora_training_client(
            base_model=MODEL, rank=4, seed=1
        )

    def logprobs_of(self, sampler: Any) -> list[float]:
        return sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()[1:]

    def greedy_tokens_of(self, sampler: Any) -> list[int]:
        params = types.SamplingParams(max_tokens=8, temperature=0.0, stop=[])
        prompt = types.ModelInput.from_ints(PROMPT)
        answer = sampler.sample(prompt, num_samples=1, sampling_params=params).result()
        return list(answer.sequences[0].tokens)

    def train(self, run: Any, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = run.forward_backward(BATCH, "cross_entropy")
            step = run.optim_step(adam())
            losses.append(loss.result().metrics["loss:sum"])
            step.result()
        return losses

    def versions(self) -> dict[str, str]:
        packages = {"tinker": "tinker", "mint": "mindlab-toolkit"}
        return {package: version(package) for package in {"tinker", packages[sdk.__name__]}}

    def models(self) -> list[str]:
        capabilities = self.service.get_server_capabilities()
        return [model.model_name for model in capabilities.supported_models]

    def samples(self) -> list[dict[str, Any]]:
        sampler = self.service.create_sampling_client(base_model=MODEL)
        params = types.SamplingParams(max_tokens=5, temperature=0.7, stop=[258], seed=7)
        prompt = types.ModelInput.from_ints(PROMPT)
        answer = sampler.sample(prompt, num_samples=3, sampling_params=params).result()
        return [
            {"tokens": s.tokens, "logprobs": s.logprobs, "stop_reason": s.stop_reason}
            for s in answer.sequences
        ]

    def chunks(self) -> dict[str, Any]:
        """2,500 datums: three requests, of which the first is sent last."""
        data = [datum([i % 250, i // 250, 7]) for i in range(2500)]
        run = self.new_run()
        result = run.forward_backward(data, "cross_entropy").result()
        few = [0, 1023, 1024, 2047, 2048, 2499]
        alone = run.forward([data[i] for i in few], "cross_entropy").result()
        step = run.optim_step(adam()).result()
        return {
            "run": run.get_info().model_id,
            "outputs": len(result.loss_fn_outputs),
            "loss": result.metrics["loss:sum"],
            "sum_of_logprobs": sum(sum(o["logprobs"].data) for o in result.loss_fn_outputs),
            "few": [list(result.loss_fn_outputs[i]["logprobs"].data) for i in few],
            "few_alone": [list(o["logprobs"].data) for o in alone.loss_fn_outputs],
            "grad_norm": step.metrics["grad_norm"],
        }

    def a_bad_batch(self) -> dict[str, Any]:
        """Numbers 1 and 2 fail; 3 and 4 are a healthy step."""
        run = self.new_run()
        return {
            "refused": error_of(
                lambda: run.forward_backward([datum([1, VOCABULARY, 2])], "cross_entropy").result()
            ),
            "step_on_nothing": error_of(lambda: run.optim_step(adam()).result()),
            "unknown_loss": error_of(lambda: run.forward_backward(BATCH, "magic").result()),
            "losses_after": self.train(run, 1),
        }

    def metrics(self) -> dict[str, list[str]]:
        run = self.new_run()
        return {
            "forward_backward": sorted(
                run.forward_backward(BATCH, "cross_entropy").result().metrics
            ),
            "forward": sorted(run.forward(BATCH, "cross_entropy").result().metrics),
        }

    def a_taken_name(self) -> dict[str, Any]:
        run = self.new_run()
        return {
            "path": run.save_state(name="taken").result().path,
            "again": error_of(lambda: run.save_state(name="taken").result()),
            "other": run.save_state(name="free").result().path,
        }

    def an_unknown_model(self) -> str:
        return error_of(lambda: self.service.create_sampling_client(base_model="no/such-model"))

    def a_custom_loss(self) -> dict[str, Any] | None:
        """Twice the negative log-likelihood, written by the user; None where torch is missing."""
        if find_spec("torch") is None:
            return None

        def twice(_: list[Any], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
            return -2 * sum(lp.sum() for lp in logprobs), {"mine": 0.5}

        custom, plain = self.new_run(), self.new_run()
        result = custom.forward_backward_custom(BATCH, twice).result()
        reference = plain.forward_backward(BATCH, "cross_entropy").result()
        return {
            "metrics": dict(result.metrics),
            "reference_loss": reference.metrics["loss:sum"],
            "grad_norm": custom.optim_step(adam()).result().metrics["grad_norm"],
            "reference_grad_norm": plain.optim_step(adam()).result().metrics["grad_norm"],
        }

    def resume(self) -> dict[str, Any]:
        """Six steps without a break, and the last three of them again from a checkpoint."""
        run = self.new_run()
        before = self.train(run, 3)
        path = run.save_state(name="half").result().path
        uninterrupted = self.train(run, 3)
        resumed = self.service.create_training_client_from_state_with_optimizer(path)
        forgetful = self.service.create_training_client_from_state(path)
        return {
            "path": path,
            "before": before,
            "uninterrupted": uninterrupted,
            "resumed": self.train(resumed, 3),
            "without_optimizer": self.train(forgetful, 3),
        }

    def frozen_samplers(self) -> dict[str, Any]:
        """Samplers of before and after training, asked again when training has gone on."""
        run = self.new_run()
        first = run.save_weights_and_get_sampling_client()
        path = run.save_weights_for_sampler(name="start").result().path
        seen = {"fresh": self.logprobs_of(first), "fresh_tokens": self.greedy_tokens_of(first)}
        self.train(run, 3)
        second = run.save_weights_and_get_sampling_client()
        seen |= {"trained": self.logprobs_of(second)}
        self.train(run, 3)
        return seen | {
            "fresh_later": self.logprobs_of(first),
            "fresh_tokens_later": self.greedy_tokens_of(first),
            "fresh_by_path": self.logprobs_of(self.service.create_sampling_client(model_path=path)),
            "trained_later": self.logprobs_of(second),
        }

    def scores_of_a_prompt(self) -> dict[str, Any]:
        """What sampler and trainer say about the same tokens."""
        run = self.new_run()
        self.train(run, 1)
        sampler = run.save_weights_and_get_sampling_client()
        answer = sampler.sample(
            types.ModelInput.from_ints(PROMPT),
            num_samples=1,
            sampling_params=types.SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=2,
        ).result()
        trainer = run.forward([datum(PROMPT)], "cross_entropy").result().loss_fn_outputs[0]
        return {
            "trainer": list(trainer["logprobs"].data),
            "sampler": answer.prompt_logprobs,
            "topk": answer.topk_prompt_logprobs,
        }

    def tokenizers(self) -> list[str]:
        run = self.new_run()
        sampler = self.service.create_sampling_client(base_model=MODEL)
        found = [run.get_tokenizer(), sampler.get_tokenizer()]
        return [tokenizer.decode(tokenizer.encode("Hello!")) for tokenizer in found]

    def book_keeping(self) -> dict[str, Any]:
        """What the REST client says of a run and does with its checkpoints."""
        run = self.new_run()
        rest = self.service.create_rest_client()
        path = run.save_state(name="kept", ttl_seconds=7200).result().path
        dropped = run.save_weights_for_sampler(name="dropped").result().path
        run_id = run.get_info().model_id

        def checkpoints() -> dict[str, Any]:
            found = rest.list_checkpoints(run_id).result().checkpoints
            return {c.checkpoint_id: c for c in found}

        before = checkpoints()
        rest.publish_checkpoint_from_tinker_path(path).result()
        rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
        rest.delete_checkpoint_from_tinker_path(dropped).result()
        after = checkpoints()
        description = rest.get_training_run(run_id).result()
        runs = rest.list_training_runs().result()
        session = rest.get_session(run_id.split(":")[0]).result()
        return {
            "before": sorted(before),
            "after": sorted(after),
            "public": [before["weights/kept"].public, after["weights/kept"].public],
            "expires": [bool(c["weights/kept"].expires_at) for c in (before, after)],
            "size": after["weights/kept"].size_bytes,
            "run": [description.training_run_id == run_id, description.base_model],
            "lora_rank": rest.get_weights_info_by_tinker_path(path).result().lora_rank,
            "in_list": run_id in [r.training_run_id for r in runs.training_runs],
            "in_session": run_id in session.training_run_ids,
            "gone": error_of(lambda: rest.get_weights_info_by_tinker_path(dropped).result()),
        }

    def downloaded_files(self) -> list[str]:
        """An adapter's files, by the archive of old clients or the single files of new ones."""
        run = self.new_run()
        rest = self.service.create_rest_client()
        if hasattr(run, "save_weights_external"):
            path = run.save_weights_external("files").result().path
            urls = rest.get_external_weights_urls(path).result().urls
            return sorted(name for name, url in urls.items() if urlopen(url).read())
        path = run.save_weights_for_sampler(name="files").result().path
        url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
        with urlopen(url) as answer, tarfile.open(fileobj=BytesIO(answer.read())) as archive:
            return sorted(Path(member.name).name for member in archive if member.isfile())

    def mint_extras(self) -> dict[str, Any] | None:
        """The two calls that only MinT's toolkit has; None for other clients."""
        if sdk.__name__ != "mint":
            return None
        run = self.new_run()
        fresh = run.save_weights_for_sampler(name="fresh").result().path
        losses = self.train(run, 2)
        trained = run.save_weights_for_sampler(name="trained").result().path
        mixed = sdk.mint.interpolate_checkpoints(
            self.service, source_paths=[fresh, trained], coefficients=[0.0, 1.0]
        )
        sampler = self.service.create_sampling_client
        prompt = types.ModelInput.from_ints(PROMPT)
        pair = sdk.mint.ReverseKLDatum(
            student_input=prompt,
            reference_input=prompt,
            target_tokens=types.TensorData(data=[*PROMPT[1:], 10], dtype="int64"),
            weights=types.TensorData(data=[1.0] * len(PROMPT), dtype="float32"),
        )
        distill = sdk.mint.forward_backward_reverse_kl
        return {
            "losses": losses,
            "mixed": self.logprobs_of(sampler(model_path=mixed.path)),
            "trained": self.logprobs_of(sampler(model_path=trained)),
            "kl_to_itself": distill(run, reference_model_path=trained, data=[pair]).metrics,
            "kl_to_fresh": distill(run, reference_model_path=fresh, data=[pair]).metrics,
            "outputs": len(distill(run, reference_model_path=fresh, data=[pair] * 2).outputs),
        }

    def lost_answers(self) -> dict[str, Any]:
        """The same work with every answer, and with the first of each endpoint lost."""
        return {
            "expected": self.a_whole_life(self.service),
            "seen": self.a_whole_life(self.lossy_service()),
        }

    def a_whole_life(self, service: Any) -> dict[str, Any]:
        run = self.new_run(service)
        losses = self.train(run, 2)
        sampler = run.save_weights_and_get_sampling_client()
        path = run.save_state(name="life").result().path
        resumed = service.create_training_client_from_state_with_optimizer(path)
        saved = resumed.save_weights_for_sampler(name="life").result().path
        reopened = service.create_sampling_client(model_path=saved)
        return {
            "losses": losses + self.train(resumed, 1),
            "logprobs": self.logprobs_of(sampler),
            "tokens": self.greedy_tokens_of(reopened),
        }


def error_of(action: Callable[[], Any]) -> str:
    """The text of the error that an action must end in."""
    try:
        value = action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no error, but {value!r}")


def main() -> None:
    url, lossy_url, *chosen = sys.argv[2:]
    service = sdk.ServiceClient(base_url=url)
    scenarios = Scenarios(service, lambda: sdk.ServiceClient(base_url=lossy_url))
    seen: dict[str, Any] = {}
    for name in chosen or SCENARIOS:
        try:
            seen[name] = {"saw": getattr(scenarios, name)()}
        except Exception:
            seen[name] = {"failed": traceback.format_exc()}
    if hasattr(service, "close"):
        service.close("success").result()
    print(json.dumps(seen))


SCENARIOS = [
    "versions",
    "models",
    "samples",
    "chunks",
    "a_bad_batch",
    "metrics",
    "a_taken_name",
    "an_unknown_model",
    "a_custom_loss",
    "resume",
    "frozen_samplers",
    "scores_of_a_prompt",
    "tokenizers",
    "book_keeping",
    "downloaded_files",
    "mint_extras",
    "lost_answers",
]

if __name__ == "__main__":
    main()
