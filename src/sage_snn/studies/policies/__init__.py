"""Policies side by side: a line each, with its difference to a baseline, its cost, and what it moved."""
