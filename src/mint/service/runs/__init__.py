"""Training runs: the stream of operations, the journal, and recovery. Sampling is elsewhere."""
