"""The contract and the domain, shared by producers and workers.

This imports no other module, since ``import goondan_tasks.tool_api`` must load neither Celery nor Redis.
The check reports a foreign ``broker_config`` package, which would make all our imports fail without a
reason.
"""

from goondan_start import put_current_directory_last, require_ours

put_current_directory_last()
require_ours("broker_config")
