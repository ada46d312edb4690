"""One policy layer for every door: registry, schema, guard, ledger, units and leases (CAP-030 – 036)."""
