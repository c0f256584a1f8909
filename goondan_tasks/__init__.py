"""What may be asked of a swarm: the contract and the domain, shared by producers and workers.

Nothing else is imported here: a tool author's ``import goondan_tasks.tool_api`` must load neither Celery nor
Redis. Where something hides ``broker_config``, every import of ours would fail, and not say why.
"""

from goondan_start import put_current_directory_last, require_ours

put_current_directory_last()
require_ours("broker_config")
