"""What goes on around the loop: Ctrl-C, threads, and a service that stops answering."""
