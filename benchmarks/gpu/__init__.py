"""The engine alone, driven through its own methods: ``python -m benchmarks.gpu``.

It needs torch, transformers, safetensors, numpy and this repository on PYTHONPATH (``src`` and its
root), so that it runs on a machine that has nothing of ours installed. It builds its own model.
"""
