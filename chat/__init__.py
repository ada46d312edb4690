"""Door: people. Conversations, turns, the REST API, pages and streams."""
