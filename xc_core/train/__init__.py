"""One loop for every training: it visits batches, logs, checkpoints, and goes on where it was killed."""
