"""Kernels below the mathematics: each has a plain-torch form that is obviously right."""
