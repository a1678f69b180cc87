"""What MkDocs asks for while it builds the site: pages that are made, links that must change."""

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
    """Has links between files of the repository lead to their pages."""
    place = page.file.src_uri
    source = repository.linked().get(place)
    return repository.on_site(markdown, source, place) if source else markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Has the page load nothing from elsewhere."""
    return output.replace(_SHIM, get_relative_url("local-search.js", page.url))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """As `on_post_page`, for the page that says that there is none."""
    return output.replace(_SHIM, "/local-search.js")
