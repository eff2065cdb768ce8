"""Loss settings that only a mint service has: a run on another service says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import mint
from mint import types
from mint.rl import ConfigError, RLConfig
from mint.rl.datums.datum import tensor
from mint.rl.loop.update import train
from mint.rl.rollouts.policy import Policy
from mint.rl.settings.extensions import extensions, require_accepted, require_known
from tests.service_fixture import MODEL


def output(*names: str, **metrics: float) -> types.ForwardBackwardOutput:
    named = {name.replace("__", ":"): value for name, value in metrics.items()}
    outputs = [{name: tensor([0.5]) for name in ("logprobs", *names)}]
    return types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=outputs, metrics=named
    )


def failure(text: str, category: str = "user") -> mint.RequestFailedError:
    return mint.RequestFailedError(text, "1", types.RequestErrorCategory(category))


def test_a_service_that_ignores_a_setting_is_noticed_by_what_it_does_not_answer() -> None:
    cfg = RLConfig(kl_loss_coef=0.01)
    require_known(cfg, [output(loss__sum=1.0, kl_loss__sum=0.5)])
    require_known(RLConfig(), [output(loss__sum=1.0)])
    with pytest.raises(ConfigError, match=r"kl_loss_coef needs a mint service.*ignores it.*leave"):
        require_known(cfg, [output(loss__sum=1.0)])


SETTINGS: dict[str, tuple[dict[str, Any], types.ForwardBackwardOutput]] = {
    "entropy_coef": ({"entropy_coef": 0.01}, output("entropy", entropy_loss__sum=-0.5)),
    "measure_entropy": ({"measure_entropy": True}, output("entropy")),
    "top_k": ({"top_k": 9}, output(temperature__mean=0.8, kept_tokens__sum=5)),
    "match_sampling": ({"match_sampling": True}, output(temperature__mean=0.8)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_other_setting_is_acknowledged_too(name: str) -> None:
    settings, acknowledged = SETTINGS[name]
    cfg = RLConfig(**settings)
    require_known(cfg, [acknowledged], temperature=0.8)
    with pytest.raises(ConfigError, match=f"{name} needs a mint service.*ignores it"):
        require_known(cfg, [acknowledged, output(loss__sum=1.0)], temperature=0.8)
    assert extensions(cfg, 0.8)
    with pytest.raises(ConfigError, match=f"{name} needs a mint service.*rejects it"):
        require_accepted(cfg, failure("no such key"), 0.8)
    require_accepted(cfg, failure("out of memory", "server"), 0.8)  # is no rejection


def test_a_service_that_rejects_a_setting_is_quoted() -> None:
    cfg = RLConfig(kl_loss_coef=0.01, kl_loss="k2")
    with pytest.raises(ConfigError, match=r"kl_loss_coef needs a mint service.*unknown key kl_k2"):
        require_accepted(cfg, failure("unknown key kl_k2"))
    require_accepted(RLConfig(), failure("unknown loss"))  # of settings that every service has


def test_only_a_service_that_reports_no_digest_is_taken_for_another(
    client: mint.ServiceClient, settings: Callable[..., RLConfig]
) -> None:
    trainer = client.create_lora_training_client(base_model=MODEL, rank=4)
    inputs = {"target_tokens": tensor([6, 7], "int64"), "weights": tensor([1.0, 1.0])}
    tokens = types.ModelInput.from_ints(tokens=[5, 6])
    datum = types.Datum(model_input=tokens, loss_fn_inputs=inputs)
    cfg = settings(entropy_coef=0.01)

    def trained(digest: str | None) -> None:
        policy = Policy(None, None, 1.0, 4, digest=digest)  # type: ignore[arg-type]
        asyncio.run(train(trainer, [datum], cfg, 1e-3, policy=policy))

    with pytest.raises(mint.RequestFailedError, match="no 'logprobs'"):
        trained("3f")
    with pytest.raises(ConfigError, match=r"entropy_coef needs a mint service.*no 'logprobs'"):
        trained(None)


def test_other_mistakes_keep_the_services_own_words(
    client: mint.ServiceClient, settings: Callable[..., RLConfig]
) -> None:
    trainer = client.create_lora_training_client(base_model=MODEL, rank=4)
    inputs = {"target_tokens": tensor([6, 7], "int64"), "weights": tensor([1.0, 1.0])}
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens=[5, 6]), loss_fn_inputs=inputs
    )
    with pytest.raises(mint.RequestFailedError, match="no 'logprobs', which importance_sampling"):
        asyncio.run(train(trainer, [datum], settings(), 1e-3))
