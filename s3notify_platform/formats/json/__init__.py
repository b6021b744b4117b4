"""JSON: lines, documents, either by content, and the checks of a text before it is parsed."""
