"""The producer's side: submit tool calls, wait for their results, look inside.

::

    from goondan_tasks.client import Client

    client = Client.connect()
    call = client.submit("coder", "bash__exec", {"command": "ls"}, instance_key="issue-42")
    result = call.result(timeout=30)
"""

from goondan_tasks.client.async_client import AsyncClient
from goondan_tasks.client.call_output import CallOutput, OutputPart
from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import PendingCall

__all__ = ["AsyncClient", "CallOutput", "Client", "OutputPart", "PendingCall"]
