"""LoRA adapters: tensors, kernels, files in PEFT format, digests, merging.

The products that adapters are added to are in :mod:`mint.engine.model`, the optimizer that trains
them in :mod:`mint.engine.training`.
"""
