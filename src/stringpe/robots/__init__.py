"""Robots: demonstrations, policies and their evaluation. Environments need the extra packages of stringpe[robots]."""
