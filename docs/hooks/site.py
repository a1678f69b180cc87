"""Hooks that MkDocs calls to build the site: they add pages and change links."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

from docs.hooks import notebooks, reference, repository

# The theme would fetch this from a server: it lets pages that no server serves be searched.
_SHIM = "https://unpkg.com/iframe-worker/shim"

log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: Any) -> Files:
    """Adds reference pages, files of the repository and notebooks."""
    made: dict[str, str | bytes] = {f"reference/{k}": v for k, v in reference.pages().items()}
    for page, path in repository.linked().items():
        if not path.startswith("docs/"):
            made[page] = repository.content(path)
    for page, content, seconds in notebooks.pages(config.extra["execute_notebooks"]):
        made[page] = content
        if page.endswith(".md"):
            log.info("%s took %.0f s", Path(page).stem, seconds)
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Makes links between files of the repository lead to their pages."""
    path = page.file.src_uri
    source = repository.linked().get(path)
    return repository.on_site(markdown, source, path) if source else markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Makes the page load nothing from another server."""
    return output.replace(_SHIM, get_relative_url("local-search.js", page.url))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Does what `on_post_page` does, for the page of a missing address."""
    return output.replace(_SHIM, "/local-search.js")
