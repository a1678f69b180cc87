"""Files of the repository on the site: links that work on GitHub work there, too.

A page of `docs/` keeps its name. Of what else a page links to, a Markdown file or a picture is
taken over as it is, a folder as its README or a list, and any other text as a page that shows it.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"\s*(```|~~~)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}


def page_of(path: str) -> str:
    """Where a file or folder of the repository is on the site, relative to its root."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if (ROOT / path).is_dir():
        return f"repository/{path}/README.md"
    shown = path.endswith((".md", ".png", ".svg"))
    return f"repository/{path}" if shown else f"repository/{path}.md"


@functools.cache
def linked() -> dict[str, str]:
    """Every file of the repository that the site takes over, by its place on the site.

    Folders that are linked to count as files; all links of Markdown files are followed.
    """
    paths = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    paths += sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
    for path in paths:  # grows while it is walked
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            targets = (resolved(path, match[1]) for _, match in _links(text))
            paths += [t for t in dict.fromkeys(targets) if t is not None and t not in paths]
    return {page_of(path): path for path in paths}


def content(path: str) -> str | bytes:
    """What the site shows of it: Markdown, or a picture."""
    file = ROOT / path
    if file.is_dir():
        readme = file / "README.md"
        if readme.exists():
            return readme.read_text(encoding="utf-8")
        names = sorted(child.name for child in file.iterdir() if child.suffix)
        return "\n".join([f"# {path}/", "", *(f"* `{name}`" for name in names)]) + "\n"
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if page_of(path).endswith(".md"):
        language = _LANGUAGES.get(file.suffix, "text")
        hidden = "---\nsearch:\n  exclude: true\n---\n\n"
        return (
            f"{hidden}# {path}\n\n```{language}\n{file.read_text(encoding='utf-8').strip()}\n```\n"
        )
    return file.read_bytes()


def resolved(source: str, target: str) -> str | None:
    """The path in the repository that a link of the file `source` leads to; None: it leaves it."""
    name = target.partition("#")[0]
    if not name or re.match(r"\w+:", name):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
        path += "/README.md"
    return path if (ROOT / path).exists() else None


def on_site(text: str, source: str, page: str) -> str:
    """The Markdown of the file `source` with links as they must be on the site's page `page`."""
    lines = text.splitlines(keepends=True)
    for number, match in _links(text):
        path = resolved(source, match[1])
        if path is None:
            continue
        anchor = match[1].partition("#")[1:]
        target = posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        old, new = f"]({match[1]})", f"]({target}{''.join(anchor)})"
        lines[number] = lines[number].replace(old, new)
    return "".join(lines)


def _links(text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Line number (from 0) and parts of every link outside of blocks of code."""
    inside = False
    for number, line in enumerate(text.splitlines()):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for match in _LINK.finditer(line):
                yield number, (match[1], match[2])
