"""Create the training client and the KL reference of a run."""

from __future__ import annotations

import mint
from mint.config_error import ConfigError
from mint.rl.datums.reference import Reference
from mint.rl.loop.checkpoints import Checkpoint
from mint.rl.runtime.endings import CheckpointGone
from mint.rl.settings.config import RLConfig


async def training_client(
    service: mint.ServiceClient,
    cfg: RLConfig,
    latest: Checkpoint | None,
    metadata: dict[str, str],
) -> mint.TrainingClient:
    """Create a client from a run's latest checkpoint, or from where the settings say."""
    if latest is not None:
        try:
            return await service.create_training_client_from_state_with_optimizer_async(
                latest.path, user_metadata=metadata
            )
        except (mint.NotFoundError, mint.RequestFailedError) as error:
            raise CheckpointGone(
                f"The run would resume from {latest.path}, but the service does not have it: "
                f"{error} Start the service with the same home folder, or use another run_dir."
            ) from error
    if cfg.start_from:
        client = await service.create_training_client_from_state_async(
            cfg.start_from, user_metadata=metadata
        )
        name = (await client.get_info_async()).model_data.model_name
        if name != cfg.base_model:  # evaluation and the KL would compare with another model
            raise ConfigError(
                f"start_from has weights of {name}, and base_model is {cfg.base_model}. Set "
                f"base_model={name}."
            )
        return client
    return await service.create_lora_training_client_async(
        base_model=cfg.base_model,
        rank=cfg.rank,
        seed=cfg.seed,
        train_mlp=cfg.train_mlp,
        train_attn=cfg.train_attn,
        train_unembed=cfg.train_unembed,
        user_metadata=metadata,
    )


async def reference(service: mint.ServiceClient, cfg: RLConfig) -> Reference | None:
    """Return the model that the policy is compared with, when the settings want one."""
    if not cfg.measures_kl:
        return None
    began = cfg.start_from or "base"
    path = began if cfg.kl_reference == "start" else cfg.kl_reference
    where = {"base_model": cfg.base_model} if path == "base" else {"model_path": path}
    client = await service.create_sampling_client_async(**where)
    return Reference(client, cfg.kl_penalty_coef, cfg.kl_samples, cfg.compares_batch)
