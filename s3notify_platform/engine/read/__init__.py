"""What each task reads, how, and what became of an object."""
