"""JSON: lines, documents, and the checks of a text before it is parsed."""
