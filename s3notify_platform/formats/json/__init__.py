"""JSON: lines, documents, and a choice of these by content; and checks of a text before it is parsed."""
