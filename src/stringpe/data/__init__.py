"""From files to batches: sources, annotations, transforms and loaders."""
