"""What an agent's changeset may not change, in whatever file: which files agents may change."""

from collections.abc import Iterator

from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.resources import AgentChangesets, ChangesetPolicy


def changed_permissions(before: Bundle, after: Bundle, agent: str, *, swarm: str | None) -> tuple[str, ...]:
    """Return the Swarms and Agents, as ``Kind/name``, whose rules for changesets an agent's change changes.

    A new Agent may not be allowed more than the one that makes it.

    Raises:
        ConfigError: one of the bundles has no such Swarm.
    """
    swarms = [
        f"Swarm/{name}"
        for name in sorted(before.swarms.keys() | after.swarms)
        if _policy(before, name) != _policy(after, name)
    ]
    chosen, now = before.swarm(swarm), after.swarm(swarm)
    if not swarms and chosen.spec.policy.changesets != now.spec.policy.changesets:
        swarms.append(f"Swarm/{now.name}")
    return (*swarms, *_changed_agents(before, after, agent))


def _changed_agents(before: Bundle, after: Bundle, agent: str) -> Iterator[str]:
    own = _limits(before, agent)
    for name in sorted(before.agents.keys() | after.agents):
        if name in before.agents:
            is_changed = _limits(before, name) != _limits(after, name)
        else:
            is_changed = own is not None and _limits(after, name) != own
        if is_changed:
            yield f"Agent/{name}"


def _policy(bundle: Bundle, swarm: str) -> ChangesetPolicy:
    """Return a Swarm's policy; that of one that is not there allows nothing."""
    found = bundle.swarms.get(swarm)
    return found.spec.policy.changesets if found else ChangesetPolicy()


def _limits(bundle: Bundle, agent: str) -> AgentChangesets | None:
    found = bundle.agents.get(agent)
    return found.spec.changesets if found else None
