"""Engine processes and the channel to them."""
