"""Run directories: file names, the schema of rollouts, the recorder, and the reader.
Nothing here judges or displays a run."""
