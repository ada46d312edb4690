"""A Django app for test sessions: its `flush` empties the tables between tests."""
