"""What the scripts of instances are given: keys and arguments of each verb."""

from importlib.resources import files
from typing import Any

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.scripts import Errand, Script
from goondan_tasks.agents.homes import Home
from goondan_tasks.messages import LONGEST_RUN_SECONDS

#: an instance that nobody has used for so long is forgotten; its files stay
INSTANCE_TTL_SECONDS = LONGEST_RUN_SECONDS

#: how long a deletion holds a home without being done: after that it counts as left
HOLD_SECONDS = 30.0


def guest_field(home: Home, agent: str) -> str:
    """Return under which name an agent's instance is a guest in another home."""
    return f"guest:{home.name}@{agent}"


class InstanceErrands:
    """Makes the errands of instances in one namespace."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        folder = files("goondan_tasks.agents") / "scripts"
        self._open, self._spawn, self._hold, self._leave = (
            Script.read(folder, "home", name) for name in ("open", "spawn", "hold", "leave")
        )
        self._let_go, self._settled = (Script.read(folder, name) for name in ("let_go", "settled"))

    def open(self, home: Home, agent: str, *, workspace: str, instance_key: str, root_id: str) -> Errand:
        """Register that an agent is about to work in an instance (``open.lua``)."""
        arguments = (agent, workspace, instance_key, root_id, INSTANCE_TTL_SECONDS)
        return self._errand(self._open, home, *arguments)

    def spawn(
        self,
        home: Home,
        agent: str,
        *,
        workspace: str,
        instance_key: str,
        owner: tuple[str, str],
        cwd: str | None,
        request: str,
    ) -> Errand:
        """Make an agent's instance, or take the one that there is (``spawn.lua``)."""
        host = home if cwd is None else home.beside(cwd)
        return Errand(
            self._spawn,
            [self._keys.instances, self._keys.instance(str(home)), self._keys.instance(str(host))],
            [
                str(home),
                agent,
                workspace,
                instance_key,
                serializer.encode(owner),
                cwd or "",
                guest_field(home, agent),
                request,
                INSTANCE_TTL_SECONDS,
            ],
        )

    def hold(self, home: Home, token: str, unused_since: float | None) -> Errand:
        """Hold a home for a deletion (``hold.lua``)."""
        since = "" if unused_since is None else unused_since
        return self._errand(self._hold, home, token, round(HOLD_SECONDS * 1000), since, INSTANCE_TTL_SECONDS)

    def let_go(self, home: Home, token: str, *, forget: bool) -> Errand:
        """End a hold: forget the instance, or leave it as it was (``let_go.lua``)."""
        return self._errand(self._let_go, home, token, int(forget))

    def leave(self, home: Home, agent: str) -> Errand:
        """Forget one agent's part of an instance (``leave.lua``)."""
        return self._errand(self._leave, home, agent)

    def settled(self, home: Home, token: str) -> Errand:
        """Note that what a half-done deletion left is dealt with (``settled.lua``)."""
        return Errand(self._settled, [self._keys.instance(str(home))], [token])

    def _errand(self, script: Script, home: Home, *arguments: Any) -> Errand:
        keys = [self._keys.instances, self._keys.instance(str(home))]
        return Errand(script, keys, [str(home), *arguments])
