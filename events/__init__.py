"""The durable event log, one counter a stream (CAP-100, CAP-110)."""
