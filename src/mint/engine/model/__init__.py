"""The frozen base model: layers, products, experts, the unembedding, precision and memory."""
