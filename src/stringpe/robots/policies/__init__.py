"""Policies: from what is observed to chunks of actions."""
