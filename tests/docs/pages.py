"""The Markdown pages of the project: their links, anchors, code blocks and tables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[a-z]*)(?: +title=\"(?P<title>[^\"]+)\")?\s*$")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\((?P<target>[^()\s]+)\)")
_INLINE_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block: ``line`` is its first line of text, ``title`` the file that it is the content of."""

    language: str
    title: str | None
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The path below the root."""
        return self.path.relative_to(ROOT).as_posix()

    def blocks(self) -> Iterator[CodeBlock]:
        """Yield the fenced code blocks."""
        fence, first, opened = None, 0, None
        lines = self.text.splitlines()
        for number, line in enumerate(lines, start=1):
            if fence is None:
                opened = _FENCE.match(line)
                fence, first = (opened["fence"], number + 1) if opened else (None, 0)
            elif opened and line.strip() == fence:
                text = "\n".join(lines[first - 1 : number - 1])
                yield CodeBlock(opened["language"], opened["title"], first, text + "\n")
                fence = None
        if fence is not None:
            raise ValueError(f"{self.name}: the block of line {first} is never closed")

    def prose(self) -> str:
        """Return the text without its fenced blocks."""
        inside, kept = False, []
        for line in self.text.splitlines():
            if line.startswith("```"):
                inside = not inside
            elif not inside:
                kept.append(line)
        return "\n".join(kept)

    def links(self) -> list[str]:
        """Return the targets of all links."""
        return [link["target"] for link in _LINK.finditer(_INLINE_CODE.sub("", self.prose()))]

    def anchors(self) -> set[str]:
        """Return the anchors of the headings, as GitHub makes them."""
        headings = filter(None, map(_HEADING.match, self.prose().splitlines()))
        return {_slug(heading["text"]) for heading in headings}

    def section(self, heading: str) -> "Page":
        """Return the part below ``heading``, up to the next heading.

        Raises:
            KeyError: there is no such heading.
        """
        lines = self.prose().splitlines()
        headings = [number for number, line in enumerate(lines) if _HEADING.match(line)]
        for number, following in zip(headings, [*headings[1:], len(lines)], strict=True):
            if lines[number].lstrip("# ").strip() == heading:
                return Page(self.path, "\n".join(lines[number + 1 : following]))
        raise KeyError(f"{self.name} has no heading {heading!r}")

    def first_cells(self) -> list[str]:
        """Return the first cell of every row of every table, without backticks."""
        return [row[0].strip("`") for table in self.tables() for row in table]

    def tables(self) -> list[list[list[str]]]:
        """Return the tables as rows of cells, without the heading row."""
        tables: list[list[list[str]]] = [[]]
        for line in self.prose().splitlines():
            if line.startswith("|"):
                tables[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            elif tables[-1]:
                tables.append([])
        return [table[2:] for table in tables if len(table) > 2]


def _slug(heading: str) -> str:
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return text.replace(" ", "-")


@cache
def every_page() -> tuple[Page, ...]:
    """Return the pages at the root, and below ``clients``, ``docs`` and ``examples``."""
    rooms = [ROOT / name for name in ("clients", "docs", "examples")]
    files = [*ROOT.glob("*.md"), *(file for room in rooms for file in room.rglob("*.md"))]
    files = [file for file in files if "node_modules" not in file.parts]
    return tuple(page(file.relative_to(ROOT).as_posix()) for file in sorted(files))


@cache
def page(name: str) -> Page:
    """Read one page, named by its path below the root."""
    path = ROOT / name
    return Page(path, path.read_text(encoding="utf-8"))
