"""What may be asked of a swarm: the contract and the domain, shared by producers and workers.

This file stays empty: a tool author's ``import goondan_tasks.tool_api`` must load neither Celery nor Redis.
"""
