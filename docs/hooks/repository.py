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
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"\s*(```|~~~)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}


def page_of(path: str) -> str:
    """Returns the path on the site of a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if (ROOT / path).is_dir():
        return f"repository/{path}/README.md"
    is_unchanged = path.endswith((".md", ".png", ".svg"))
    return f"repository/{path}" if is_unchanged else f"repository/{path}.md"


@functools.cache
def linked() -> dict[str, str]:
    """Returns the files of the repository that the site takes over, by their paths on the site.

    Folders that are linked to count as files; all links of Markdown files are followed.
    """
    paths = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    paths += sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
    for path in paths:  # grows while it is walked
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            targets = (resolved(path, target) for _, target in _links(text))
            paths += [t for t in dict.fromkeys(targets) if t is not None and t not in paths]
    return {page_of(path): path for path in paths}


def content(path: str) -> str | bytes:
    """Returns what the site shows of a file or folder: Markdown, or a picture."""
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
    """Returns the path to which a link of the file `source` leads; None outside the repository."""
    name = target.partition("#")[0]
    if not name or re.match(r"\w+:", name):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
        path += "/README.md"
    return path if (ROOT / path).exists() else None


def on_site(text: str, source: str, page: str) -> str:
    """Returns the Markdown of the file `source`, with links for the site's page `page`."""
    lines = text.splitlines(keepends=True)
    for number, target in _links(text):
        path = resolved(source, target)
        if path is None:
            continue
        _, sign, anchor = target.partition("#")
        new_target = posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        new_link = f"]({new_target}{sign}{anchor})"
        lines[number] = lines[number].replace(f"]({target})", new_link)
    return "".join(lines)


def _links(text: str) -> Iterator[tuple[int, str]]:
    """Yields line number (from 0) and target of each link outside of blocks of code."""
    inside = False
    for number, line in enumerate(text.splitlines()):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for target in _LINK.findall(line):
                yield number, target
