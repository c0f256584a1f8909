"""What a client can do to be an agent's brain: handle Turns, Step by Step."""

import secrets

from goondan_tasks.client.connection import Connection
from goondan_tasks.client.turn import Turn
from goondan_tasks.client.turn_desk import TurnActions, TurnDesk
from goondan_tasks.errors import ToolInputValidationError
from goondan_tasks.messages import JsonObject
from goondan_tasks.spans import current_span


class TurnMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about Turns."""

    def turn(
        self,
        agent: str,
        instance_key: str = "default",
        *,
        turn_id: str | None = None,
        auth: JsonObject | None = None,
        origin: JsonObject | None = None,
        correlation_id: str | None = None,
    ) -> Turn:
        """Begin a Turn of an agent's instance, or go on with the one called ``turn_id``; nothing is sent yet.

        ``auth`` and ``origin`` go with each of its calls. ``goondan trace`` finds them all by the
        ``correlation_id``, which is the Turn's id unless it is given.

        Raises:
            ToolInputValidationError: the instance's key is empty.
        """
        if instance_key == "":
            raise ToolInputValidationError(
                "The instance key is empty: leave it out for the default instance."
            )
        here, turn_id = current_span(), turn_id or f"turn-{secrets.token_hex(6)}"
        return Turn(
            TurnDesk(
                self._turn_actions,
                agent=agent,
                instance_key=instance_key,
                turn_id=turn_id,
                trace_id=secrets.token_hex(16) if here is None else here.trace_id,
                correlation_id=correlation_id or turn_id,
                auth=auth,
                origin=origin,
            )
        )

    @property
    def _turn_actions(self) -> TurnActions:
        return TurnActions(
            self._submit,
            self._steps,
            self._broker_errors,
            self.settings.max_args_bytes,
            self.settings.help_url,
        )
