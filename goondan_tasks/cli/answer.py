"""What a command has found, for programs and for people."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import printable


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in both forms; a command with ``--watch`` gives many."""

    document: Any
    #: ``None`` where there is nothing to show
    content: Table | Text | None
    #: what people are told beside it
    notes: tuple[str, ...] = ()

    def write(self, output: Output) -> None:
        """Write it as ``output`` wants it."""
        if output.as_json:
            return output.document(self.document)
        if self.content is not None:
            output.print(self.content)
        for note in self.notes:
            output.note(note)
        return None

    def drawn(self) -> Group:
        """Return all of it as one thing to draw on a terminal."""
        content = () if self.content is None else (self.content,)
        return Group(*content, *(Text(printable(note)) for note in self.notes))
