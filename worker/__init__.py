"""Door: Celery tasks, beat, recovery; runs turns and plans (CAP-060 – 066)."""
