"""Measurements, compared with a user's alternatives: `poe bench` runs all and rewrites FIGURES.md."""
