"""One bounded ReAct loop for chat turns and LLM steps alike (CAP-040 – 044)."""
