"""Datasets that workers run: from the user's dataset to a registered graph, and from a job back to a dataset."""
