"""What a tool's programs and isolated handlers may see: environment variables, files and the network."""

import os
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.bundle import BoundTool, Bundle
from goondan_tasks.bundle.fields import resolve_variables
from goondan_tasks.machine.inner_path import unresolved
from goondan_tasks.machine.process import child_environment
from goondan_tasks.machine.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Confinement:
    """The rules for one bundle's tools; without a bundle, only a tool's own ``env`` and ``sandbox`` count."""

    bundle: Bundle | None = None
    state_root: Path | None = None

    def environment(self, agent: str, bound: BoundTool) -> dict[str, str]:
        """Return the environment of a tool of an agent.

        Raises:
            ConfigError: a variable that the Tool or the Agent names has no value.
        """
        agents = self.bundle.agents if self.bundle else {}
        named = {**(agents[agent].spec.env if agent in agents else {}), **(bound.export.env or {})}
        return {**child_environment(), **resolve_variables(named)}

    def sandbox(self, bound: BoundTool, workdir: Path) -> Sandbox | None:
        """Return the sandbox of a tool; ``None`` if it declares none.

        Raises:
            OSError: the workdir does not exist, or a link has taken the place of a directory on the way.
        """
        if not bound.export.sandbox:
            return None
        root = self.bundle.root if self.bundle else None
        with unresolved(workdir, (), str(workdir)).open_directory() as descriptor:
            status = os.fstat(descriptor)
        is_strict, identity = bound.export.sandbox == "strict", (status.st_dev, status.st_ino)
        return Sandbox(workdir, root, self.state_root, is_strict=is_strict, identity=identity)
