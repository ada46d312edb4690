"""Durable plans: the rows, their arrows and what reads them (CAP-050 – 055)."""
