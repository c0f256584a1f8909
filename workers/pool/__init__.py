"""The worker as Celery sees it: its pool, its queues, its start and its end."""
