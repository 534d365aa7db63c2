"""How good predictions are: average precision in 2D and 3D, recall, and intervals over runs."""
