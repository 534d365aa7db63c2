"""Demonstrations: recording, storing and reading them."""
