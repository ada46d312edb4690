"""Correlation ids, interactions, cost. Records, and never mutates the domain (CAP-101)."""
