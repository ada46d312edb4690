"""The model and embedder ports, and their adapters (CAP-001 – 011)."""
