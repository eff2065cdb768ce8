"""The surroundings of the loop: Ctrl-C, threads, and a service that stops answering."""
