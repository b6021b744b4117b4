"""Figures, side by side with what a user would pick instead: `poe bench` runs all and rewrites FIGURES.md."""
