"""Snapshots of the domain and their versions (CAP-037 – 039)."""
