"""Explains jobs: request (explain), answer (response), objects and tables (explanation, order, placement, grid)."""
