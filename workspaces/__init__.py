"""User, Workspace, membership, the scoping manager, the error root."""
