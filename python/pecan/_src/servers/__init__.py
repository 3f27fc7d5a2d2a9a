"""Dispatchers and workers as child processes: their configuration, their life, and the private cluster of a trainer."""
