"""Explains the order of a job's steps: request (explain), answer (response), object and tables (explanation, grid)."""
