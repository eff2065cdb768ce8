"""The GPU's paths: kernels, graphs and compiled layers in every precision. Needs an NVIDIA GPU."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine.adapters.lora import Adapter
from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Datum,
    ForwardBackward,
    LoraSpec,
    SampleRequest,
    SampleResult,
)
from mint.engine.model.base_model import BaseModel
from mint.engine.training.graphs import TrunkGraphs
from mint.engine.training.trainer import LoraTrainer
from tests.engine.conftest import ids, sample
from tests.engine.sampling.test_sampler import trained_engine, trainer_logprobs
from tests.engine.training.test_logprobs import reference, with_kept
from tests.engine.training.test_trainer import (
    PlainModel,
    assert_close,
    gradients,
    group,
    loss_of,
    randomise,
)
from tests.tiny import FAMILIES, VOCABULARY, build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")


@pytest.fixture(autouse=True)
def run_uncompiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiling takes half a minute a family: one test has compiled layers, the others do not."""
    compiled = "compiled" in request.node.name
    torch.compiler.set_stance("default" if compiled else "force_eager")
    yield
    torch.compiler.set_stance("default")


EXPERTS = ["gpt_oss", "qwen3_moe", "mixtral"]  # a rounding may choose another expert
CASES = [
    *((name, "exact" if name in EXPERTS else "half") for name in FAMILIES),
    *((name, precision) for name in ("llama", "gemma2") for precision in ("exact", "bfloat16")),
]
LIMITS = {"exact": (1e-4, 1e-5), "half": (3e-2, 3e-3), "bfloat16": (3e-1, 3e-2)}


def load(family: str, folder: Path, precision: str = "half", **config: Any) -> BaseModel:
    path = build_model(folder / family, family, **config)
    return BaseModel.load(family, path, precision=precision)


def rounded_weights(plain: PlainModel, model: BaseModel) -> PlainModel:
    """The reference with the weights of linear layers and experts that the GPU holds."""
    with torch.no_grad():
        for site in model.sites:
            weight = plain.model.get_parameter(site.name if site.experts else f"{site.name}.weight")
            weight.copy_(weight.to(model.precision.weights))
    return plain


@pytest.mark.parametrize(("family", "precision"), CASES)
def test_gradients_equal_those_of_a_float64_model_with_the_same_weights(
    family: str, precision: str, tmp_path: Path
) -> None:
    model = load(family, tmp_path, precision)
    run = LoraTrainer(model, LoraSpec(rank=8, seed=1), 1024)  # of 8: products are joined
    randomise_on_cpu(run)
    data = group(seed=5)
    [result] = run.forward_backward([ForwardBackward(data, "cross_entropy")])
    plain = rounded_weights(PlainModel(tmp_path / family, on_cpu(run)), model)
    total = torch.zeros((), dtype=torch.float64)
    bound = {"exact": 1e-3, "half": 5e-2, "bfloat16": 4e-1}[precision]
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        lp = plain.logprobs(datum)
        np.testing.assert_allclose(logprobs, lp[:, 0].detach(), atol=bound)
        total = total + loss_of("cross_entropy", lp, datum)
    total.backward()
    limit = {"exact": 2e-2, "half": 4e-2, "bfloat16": 2e-1}[precision]
    if family == "granite":
        limit *= 2  # its small logits leave small gradients
    for name, pair in gradients(run).items():
        for mine, theirs in zip(pair, plain.pairs[name], strict=True):
            # The backward products round the incoming gradient to bfloat16.
            gap = (mine.cpu().double() - theirs.grad).norm() / theirs.grad.norm()
            assert gap <= limit, name


def randomise_on_cpu(run: LoraTrainer) -> None:
    copy = on_cpu(run)
    randomise(copy)
    with torch.no_grad():
        for name, (_, b) in run.adapter.pairs.items():
            b.copy_(copy.pairs[name][1])


def on_cpu(run: LoraTrainer) -> Adapter:
    return run.adapter.frozen_copy(torch.device("cpu"))


def gaps(engine: Engine, prompt: np.ndarray, request: SampleRequest) -> np.ndarray:
    [result] = sample(engine, "trained", request)
    wanted = trainer_logprobs(engine, prompt, result)
    return np.concatenate(
        [np.abs(s.logprobs - lp) for s, lp in zip(result.sequences, wanted, strict=True)]
    )


@pytest.mark.parametrize(("family", "precision"), CASES)
def test_sampler_and_trainer_agree(family: str, precision: str, tmp_path: Path) -> None:
    engine = trained_engine(load(family, tmp_path, precision))
    prompt = ids("Q: 1 + 1?\nA:")
    largest, mean = LIMITS[precision]
    for _ in range(2):  # the second turn begins with blocks that the first one left
        request = SampleRequest(prompt, num_samples=32, max_tokens=64, seed=1, stop=[])
        found = gaps(engine, prompt, request)
        assert found.max() <= largest
        assert found.mean() <= mean
        prompt = np.concatenate([prompt, ids("And 2 + 2?\nA:"), prompt])


@pytest.mark.parametrize("precision", ["half", "exact"])
def test_compiled_layers_agree_too(precision: str, tmp_path: Path) -> None:
    test_sampler_and_trainer_agree("qwen3", precision, tmp_path)
    test_gradients_equal_those_of_a_float64_model_with_the_same_weights(
        "qwen3", precision, tmp_path / "again"
    )


@pytest.mark.parametrize("chosen", ["all", "kept"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_compiled_entropies_temperatures_and_kept_tokens_agree_with_float64(
    family: str, chosen: str, tmp_path: Path
) -> None:
    model = load(family, tmp_path, "exact")
    run = LoraTrainer(model, LoraSpec(rank=8, seed=1), 1024)
    randomise_on_cpu(run)
    data = group(seed=5) if chosen == "all" else with_kept(group(seed=5))
    config: dict[str, float | str] = {"temperature": 1.7, "entropy_coef": 0.4, "entropy": 1.0}
    [result] = run.forward_backward([ForwardBackward(data, "importance_sampling", config)])
    plain = rounded_weights(PlainModel(tmp_path / family, on_cpu(run)), model)
    total, _, logprobs, entropies = reference(plain, data, 1.7, 0.4)
    total.backward()
    bound = 1e-3
    for mine, theirs in zip(result.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=bound)
    for mine, theirs in zip(result.entropy, entropies, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=bound)
    for name, pair in gradients(run).items():
        for mine, theirs in zip(pair, plain.pairs[name], strict=True):
            gap = (mine.cpu().double() - theirs.grad).norm() / theirs.grad.norm()
            assert gap <= 4e-2, name


def test_compiled_layers_run_forward_only(tmp_path: Path) -> None:
    engine = trained_engine(load("qwen3", tmp_path))
    tokens = ids("Q: 1 + 1?\nA: 2")
    data = [Datum(tokens[:-1], {"target_tokens": tokens[1:]})]
    results = [
        engine.forward_backward(
            "run", [ForwardBackward(data, "cross_entropy", forward_only=forward_only)]
        )[0]
        for forward_only in (True, False)
    ]
    one, other = (result.logprobs[0] for result in results)
    np.testing.assert_allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("precision", ["half", "exact"])
def test_recorded_passes_have_the_gradients_of_others(precision: str, tmp_path: Path) -> None:
    """Each round has other data and another adapter; the weights move before the last two."""
    model = load("qwen3", tmp_path, precision)
    graphs = TrunkGraphs(model)
    for number, replays in enumerate([0, 1, 2, 2, 3]):
        spec = LoraSpec(rank=8, seed=number)
        plain, recorded = LoraTrainer(model, spec, 1024), LoraTrainer(model, spec, 1024, graphs)
        if number == 3:
            model.bank.use([plain.adapter, recorded.adapter])
        results = []
        for run in (plain, recorded):
            randomise_on_cpu(run)
            operation = ForwardBackward(group(seed=number), "cross_entropy")
            results += run.forward_backward([operation])
        assert graphs.replays == replays
        for one, other in zip(*(result.logprobs for result in results), strict=True):
            np.testing.assert_allclose(one, other, atol=LIMITS[precision][0])
        for name, pair in gradients(plain).items():
            for one, other in zip(pair, gradients(recorded)[name], strict=True):
                assert (one - other).norm() <= 2e-2 * one.norm(), name


def test_compiled_layers_can_be_recorded(tmp_path: Path) -> None:
    test_recorded_passes_have_the_gradients_of_others("half", tmp_path)


def test_a_recorded_pass_waits_for_the_device_once(tmp_path: Path) -> None:
    """A counter in place of times: whatever waits earlier leaves the device without work."""
    model = load("qwen3", tmp_path)
    run = LoraTrainer(model, LoraSpec(rank=8, seed=1, train_unembed=False), 1024)
    operation = ForwardBackward(group(seed=5), "ppo")
    for _ in range(2):  # seen, then recorded
        run.forward_backward([operation])
        run.optim_step(AdamSettings(learning_rate=0.0))
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run.forward_backward([operation])
    torch.cuda.set_sync_debug_mode("default")
    assert sum("synchroniz" in str(warning.message) for warning in found) == 1


def test_rows_of_any_batch_get_the_same_tokens(tmp_path: Path) -> None:
    """Graphs of several sizes, rows that come and go, and special requests among them."""
    engine = trained_engine(load("qwen3", tmp_path, "exact"))
    engine.create_sampler("base")
    requests = [
        SampleRequest(ids("a long prompt " * 4), 3, 40, seed=1, stop=[]),
        SampleRequest(ids("x"), 20, 9, seed=2, stop=[]),
        SampleRequest(ids("another"), 2, 25, seed=3, stop=[], top_p=0.9, topk_sample_logprobs=2),
        SampleRequest(ids("greedy"), 1, 30, temperature=0.0, stop=[]),
    ]
    names = ["trained", "base", "trained", "fresh"]
    alone = [sample(engine, name, r)[0] for name, r in zip(names, requests, strict=True)]
    for ticket, (name, request) in enumerate(zip(names, requests, strict=True)):
        engine.sample(ticket, name, request)
        engine.sampling.step()
    together = {}
    while not engine.sampling.is_idle:
        together |= {job.ticket: job.result() for job in engine.sampling.step()}
    for ticket, want in enumerate(alone):
        for one, other in zip(want.sequences, together[ticket].sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_answers_that_give_way_to_another_tenant_are_not_changed(tmp_path: Path) -> None:
    """Rows are preempted while the next step is in flight, and resume in other blocks."""
    from mint.engine.sampling.graphs import GraphRunner
    from mint.engine.sampling.kv_pool import KVPool
    from mint.engine.sampling.sampler import Sampler

    engine = trained_engine(load("qwen3", tmp_path, "exact"))
    text = ids("The quick brown fox jumps over the lazy dog. " * 2)
    requests = {
        ticket: SampleRequest(text[: 15 + ticket], 2, 20 + ticket % 5, seed=ticket, stop=[])
        for ticket in range(14)
    }
    alone = {ticket: sample(engine, "trained", r)[0] for ticket, r in requests.items()}
    model = engine.model
    pool = KVPool(model.kv_shapes, 60, model.precision.keys, model.device)
    engine.sampling = Sampler(GraphRunner(model, pool), max_rows=4, chunk_tokens=64)
    for ticket in range(8):
        engine.sample(ticket, "trained", replace(requests[ticket], tenant="crowd"))
    over = {}
    for ticket in range(8, 14):
        for _ in range(5):
            over |= {job.ticket: job.result() for job in engine.sampling.step()}
        engine.sample(ticket, "trained", replace(requests[ticket], tenant=f"t{ticket}"))
    while not engine.sampling.is_idle:
        over |= {job.ticket: job.result() for job in engine.sampling.step()}
    for ticket, want in alone.items():
        for one, other in zip(want.sequences, over[ticket].sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("precision", ["half", "exact"])
def test_recorded_prompts_are_scored_as_others_are(precision: str, tmp_path: Path) -> None:
    """Prompts of three samplers in one pass, of other lengths each time, some beside answers."""
    engine = trained_engine(load("qwen3", tmp_path, precision))
    engine.create_sampler("base")
    recorder = engine._runner._prefills  # type: ignore[attr-defined]
    text = ids("The quick brown fox jumps over the lazy dog. " * 4)

    def scores(extra: int, is_recorded: bool) -> list[np.ndarray]:
        recorder.is_possible = is_recorded
        for ticket, name in enumerate(("trained", "base", "fresh")):
            prompt = text[ticket : 20 + 9 * ticket + extra]
            engine.sample(ticket, name, SampleRequest(prompt, max_tokens=1, prompt_logprobs=True))
        results: dict[int, SampleResult] = {}
        while not {0, 1, 2} <= results.keys():  # the first tokens beside answers come steps later
            results |= {job.ticket: job.result() for job in engine.sampling.step()}
        return [results[ticket].prompt_logprobs[1:] for ticket in range(3)]

    for number in range(4):
        if number == 2:
            engine.sample(9, "trained", SampleRequest(text[:9], 4, 40, seed=1, stop=[]))
            engine.sampling.step()
        wanted, before = scores(number, is_recorded=False), recorder.replays
        found = scores(number, is_recorded=True)
        assert recorder.replays - before == (number > 0)  # the second time it is recorded
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=LIMITS[precision][0])


def test_compiled_layers_can_be_recorded_for_prompts(tmp_path: Path) -> None:
    test_recorded_prompts_are_scored_as_others_are("half", tmp_path)


def test_a_long_prompt_beside_answers_replays_short_passes(tmp_path: Path) -> None:
    """Counters in place of times: every step of the answers waits for one recorded pass at most."""
    from mint.engine.sampling.prefill_graphs import MOST_TOKENS

    folder = build_model(tmp_path / "long", max_position_embeddings=8 * MOST_TOKENS)
    engine = trained_engine(BaseModel.load("long", folder, precision="exact"))
    recorder = engine._runner._prefills  # type: ignore[attr-defined]
    answers = SampleRequest(ids("Q: 1 + 1?"), 8, 60, seed=1, stop=[])
    rng = np.random.default_rng(0)
    results = []
    for _ in range(3):
        long = rng.integers(0, VOCABULARY, 4 * MOST_TOKENS)
        [alone] = sample(engine, "trained", answers)
        engine.sample(0, "trained", answers)
        engine.sampling.step()
        engine.sample(1, "trained", SampleRequest(long, 1, 4, seed=2, stop=[]))
        before = recorder.replays
        while not engine.sampling.is_idle:
            results += [job.result() for job in engine.sampling.step() if job.ticket == 0]
        for one, other in zip(alone.sequences, results.pop().sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert recorder.replays - before == 4


def test_samples_with_seeds_of_their_own_are_those_of_single_requests(tmp_path: Path) -> None:
    engine = trained_engine(load("llama", tmp_path, "exact"))
    seeds = [5, 2**70, -3]
    one = SampleRequest(ids("Q: 1 + 1?\nA:"), 1, 20, stop=[])
    [together] = sample(engine, "trained", replace(one, num_samples=3, seeds=seeds))
    alone = sample(engine, "trained", *(replace(one, seed=seed) for seed in seeds))
    for mine, single in zip(together.sequences, alone, strict=True):
        np.testing.assert_array_equal(mine.tokens, single.sequences[0].tokens)


def test_scoring_with_another_sampler_leaves_running_rows_their_own_weights(tmp_path: Path) -> None:
    """The other adapter takes the only slot between two steps whose rows stay the same."""
    engine = trained_engine(load("llama", tmp_path, "exact"))
    request = SampleRequest(ids("Q: 1 + 1?\nA:"), 4, 30, seed=1, stop=[])
    [alone] = sample(engine, "trained", request)
    engine.sample(0, "trained", request)
    done = []
    for step in range(5):
        done += engine.sampling.step()
        score = SampleRequest(ids(f"number {step}"), 1, 1, prompt_logprobs=True)
        engine.sample(1 + step, "fresh", score)
    while not engine.sampling.is_idle:
        done += engine.sampling.step()
    [mine] = [job.result() for job in done if job.ticket == 0]
    for one, other in zip(alone.sequences, mine.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_rows_of_the_base_model_take_no_adapter_from_the_rows_before_them(tmp_path: Path) -> None:
    """Rows of an adapter end, the base model's take their places, then the adapter comes back."""
    engine = trained_engine(load("llama", tmp_path, "exact"))
    engine.create_sampler("base")
    request = SampleRequest(ids("Q: 1 + 1?\nA:"), 4, 30, seed=1, stop=[])
    [alone] = sample(engine, "base", request)
    sample(engine, "trained", request)
    engine.sample(0, "base", request)
    done = [job for _ in range(4) for job in engine.sampling.step()]
    engine.sample(1, "trained", replace(request, num_samples=2))
    while not engine.sampling.is_idle:
        done += engine.sampling.step()
    [mine] = [job.result() for job in done if job.ticket == 0]
    for one, other in zip(alone.sequences, mine.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_a_prompt_is_scored_with_the_trained_output_layer_in_any_slot(tmp_path: Path) -> None:
    engine = trained_engine(load("llama", tmp_path, "exact"))  # others round by the product's size
    text = ids("The quick brown fox jumps over the lazy dog. " * 4)
    asked = SampleRequest(text, max_tokens=1, prompt_logprobs=True)
    [first] = sample(engine, "trained", asked)
    for number in range(3):  # the same weights in the next slots
        engine.create_sampler(f"other-{number}", run_id="run")
        sample(engine, f"other-{number}", SampleRequest(text[:9], max_tokens=2))
    [again] = sample(engine, "other-2", asked)
    np.testing.assert_allclose(first.prompt_logprobs[1:], again.prompt_logprobs[1:], atol=1e-4)


def test_long_sequences_train_with_recomputed_layers(tmp_path: Path) -> None:
    model = load("llama", tmp_path, "exact")
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 200)
    data = [Datum(tokens[:-1], {"target_tokens": tokens[1:]})]
    kept, recomputed = (LoraTrainer(model, LoraSpec(rank=4, seed=1), n) for n in (1024, 64))
    for run in (kept, recomputed):
        randomise_on_cpu(run)
        run.forward_backward([ForwardBackward(data, "cross_entropy")])
    for name, pair in gradients(kept).items():
        for one, other in zip(pair, gradients(recomputed)[name], strict=True):
            assert_close(one, other, name)


def test_the_optimizer_steps_and_the_next_sampler_has_the_new_weights(tmp_path: Path) -> None:
    engine = trained_engine(load("llama", tmp_path))
    prompt = ids("Q: 1 + 1?\nA:")
    request = SampleRequest(prompt, 4, 8, seed=1, stop=[])
    [before] = sample(engine, "trained", request)
    datum = Datum(prompt[:-1], {"target_tokens": prompt[1:]})
    for _ in range(3):
        engine.forward_backward("run", [ForwardBackward([datum], "cross_entropy")])
        engine.optim_step("run", AdamSettings(learning_rate=0.02))
    [same] = sample(engine, "trained", request)
    np.testing.assert_array_equal(before.sequences[0].tokens, same.sequences[0].tokens)
    engine.create_sampler("newer", run_id="run")
    [newer] = sample(engine, "newer", request)
    assert abs(newer.sequences[0].logprobs[0] - before.sequences[0].logprobs[0]) > 1e-3


def test_an_optimizer_from_files_steps_as_the_one_that_wrote_them(tmp_path: Path) -> None:
    model = load("llama", tmp_path, "exact")
    one, other = (LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024) for _ in range(2))
    operation, settings = ForwardBackward(group(seed=1), "cross_entropy"), AdamSettings(1e-2)
    one.forward_backward([operation])
    one.optim_step(settings)
    one.save(tmp_path)
    other.load(tmp_path, optimizer=True)
    for run in (one, other):
        run.forward_backward([operation])
        run.optim_step(settings)
    for mine, theirs in zip(one.adapter.parameters(), other.adapter.parameters(), strict=True):
        assert (mine - theirs).norm() <= 2e-2 * mine.norm()


def test_a_decode_step_syncs_once_and_replays_one_graph(tmp_path: Path) -> None:
    """Counters in place of times: a step is one graph, whose kernels do not grow with the rows."""
    engine = trained_engine(load("llama", tmp_path))
    runner = engine._runner
    syncs, kernels = [], []
    for rows in (8, 64):
        request = SampleRequest(ids("Q: 1 + 1?"), rows, 20, seed=1, stop=[])
        sample(engine, "trained", request)
        before = runner.graphs.replays  # type: ignore[attr-defined]
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            sample(engine, "trained", request)
        torch.cuda.set_sync_debug_mode("default")
        # 19 tokens after the first, and one thrown away
        assert runner.graphs.replays - before == 20
        syncs.append(sum("synchroniz" in str(warning.message) for warning in found))
        with torch.profiler.profile() as profile:
            sample(engine, "trained", request)
        on_device = [e for e in profile.events() if e.device_type.name == "CUDA"]
        kernels.append(len(on_device))
    print(f"syncs {syncs}, kernels {kernels} in 20 steps")
    assert syncs[0] == syncs[1] <= 20 + 12  # one a step, and those of the prompt
    assert kernels[1] <= 1.1 * kernels[0]


def test_an_engine_says_how_much_of_the_gpu_it_holds(tmp_path: Path) -> None:
    held = Engine(load("llama", tmp_path), memory_gb=4).memory()
    assert 0 < held["device_bytes_used"] < held["device_bytes_capacity"]


HUNGRY: dict[str, Any] = {"num_hidden_layers": 4, "num_key_value_heads": 4, "head_dim": 64}
"""With a context of 131,072 tokens, 512 rows would fill more than any GPU has."""


@pytest.fixture
def freed_memory() -> Iterator[None]:
    """Other processes test on the same GPU."""
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def use(engine: Engine) -> None:
    """Sample, and train on the prompt."""
    prompt = ids("Q: 1 + 1?\nA:")
    engine.create_run("run", LoraSpec(rank=4, seed=1))
    datum = Datum(prompt[:-1], {"target_tokens": prompt[1:]})
    engine.forward_backward("run", [ForwardBackward([datum] * 64, "cross_entropy")])
    engine.optim_step("run", AdamSettings(learning_rate=0.02))
    engine.create_sampler("sampler", run_id="run")
    [result] = sample(engine, "sampler", SampleRequest(prompt, 64, 20, seed=1, stop=[]))
    assert len(result.sequences) == 64


def test_an_engine_beside_another_takes_a_share_of_what_is_left(
    tmp_path: Path, freed_memory: None
) -> None:
    model = load("llama", tmp_path, max_position_embeddings=131_072, **HUNGRY)
    free, _ = torch.cuda.mem_get_info()
    first, second = Engine(model), Engine(model)
    assert first.budget.kv_bytes > 0.2 * free
    assert 0 < second.budget.kv_bytes < 0.75 * first.budget.kv_bytes
    for engine in (second, first):
        use(engine)


def test_memory_gb_bounds_what_a_process_takes_of_the_gpu(
    tmp_path: Path, freed_memory: None
) -> None:
    model = load("llama", tmp_path, max_position_embeddings=131_072, **HUNGRY)
    first, second = Engine(model, memory_gb=8), Engine(model, memory_gb=8)
    assert 0 < second.budget.kv_bytes < 0.75 * first.budget.kv_bytes
    for engine in (second, first):
        use(engine)
    assert torch.cuda.memory_reserved() <= 8 * 2**30
