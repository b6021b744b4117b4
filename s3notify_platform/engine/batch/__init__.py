"""When a batch is due, of which slots, and how it finds out what changed: by entries, or by a listing."""
