"""Live signals to clients: token deltas and wake-ups over Redis, SSE out (CAP-100)."""
