"""Boxes in images and in space."""
