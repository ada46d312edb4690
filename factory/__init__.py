"""Composition root: identities, tiers and tool sets become agents (CAP-120 – 122)."""
