"""Component instances that `definitions` loads by default: the demo's source."""
