"""Measurements, each compared with a user's alternatives. `poe bench` runs all of them, and rewrites FIGURES.md."""
