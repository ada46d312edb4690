"""Soft intent between turns: five short keys that the model keeps for itself (CAP-070 – 073)."""
