"""The verdict on a run: pure functions of its metrics and events.
Nothing here reads or writes files."""
