"""LoRA adapters: tensors, kernels, files in PEFT format, digests, merging."""
