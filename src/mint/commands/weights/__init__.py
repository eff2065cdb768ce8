"""Commands about weights: models, checkpoints, export, sample.
Merging and conversion are in ``mint.engine``."""
