"""The simulated world: robots, things, tasks, scripted experts and cameras."""
