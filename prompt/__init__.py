"""The layered prompt, recipes and validate-before-LLM (CAP-020 – 023)."""
