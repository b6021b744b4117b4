"""JSON: lines, documents, the choice between both by content, and checks of a text before parsing."""
