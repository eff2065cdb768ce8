"""Describes an engine's plan: precision, memory and batch size of a loaded base model."""

from mint.engine.messages import EnginePlan

GB = 1024**3


def describe_plan(base_model: str, plan: EnginePlan) -> str:
    """Return one line about what an engine decided when it loaded its model.

    >>> reason = "this CPU has bfloat16 instructions"
    >>> plan = EnginePlan("cpu", "bfloat16", reason, 43_000, 2 * GB, 1024, 3 * GB)
    >>> print(describe_plan("tiny/llama", plan))  # doctest: +NORMALIZE_WHITESPACE
    tiny/llama on cpu: precision bfloat16 (this CPU has bfloat16 instructions),
    43,000 KV tokens (2.0 GB), 1,024 training tokens a pass
    """
    return (
        f"{base_model} on {plan.device}: precision {plan.precision} ({plan.reason}), "
        f"{plan.kv_tokens:,} KV tokens ({plan.kv_bytes / GB:.1f} GB), "
        f"{plan.train_tokens:,} training tokens a pass"
    )
