"""The road of calls, and the worker as Celery sees it: its pool, queues, start and end."""
