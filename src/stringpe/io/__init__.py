"""The bottom layer: files, progress, pictures and checkpoints on disk. It knows nothing of tasks or models."""
