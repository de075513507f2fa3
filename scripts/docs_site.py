"""What MkDocs does for this repository besides its usual work: a hook, named in mkdocs.yml.

The README, CONTRIBUTING, CHANGELOG and the tasks' READMEs are pages too, and the recipes are files of the site. Links
are those of the repository, so that they work on a code host as well; here they are translated. Each package has a
page in the API reference, with all its modules.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")


def repository_files() -> dict[str, str]:
    """The site's files that are outside docs/: path in the repository → path in the site."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    for page in SOURCE.glob("vaak/tasks/*/README.md"):
        found[page.relative_to(ROOT).as_posix()] = f"tasks/{page.parent.name}.md"
    for recipe in ROOT.glob("configs/**/*.yml"):
        path = recipe.relative_to(ROOT).as_posix()
        found[path] = path
    return found


def packages() -> dict[str, list[str]]:
    """Every package that has modules, with these, as dotted names."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.glob("vaak/**/*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        package = module.rpartition(".")[0]
        found.setdefault(package, [])
        if path.name != "__init__.py":
            found[package].append(module)
    return found


def api_page(package: str) -> str:
    return f"api/{package}.md"


def on_config(config: MkDocsConfig) -> None:
    """Add the API reference to the navigation, a section for each package of ``vaak``."""
    sections: dict[str, list[Any]] = {}
    for package in packages():
        parts = package.split(".")
        sections.setdefault(".".join(parts[:2]), []).append({package: api_page(package)})
    assert config.nav is not None
    config.nav.append({"API": [{section: pages} for section, pages in sections.items()]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the files of the repository and the pages of the API."""
    for path, place in repository_files().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for package, modules in packages().items():
        about = f"# {package}\n\n::: {package}\n    options: {{members: false, show_root_heading: false}}\n\n"
        text = about + "\n".join(f"::: {module}\n" for module in modules)
        files.append(File.generated(config, api_page(package), content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate links between files of the repository into links between files of the site."""
    places = repository_files()
    origins = {place: path for path, place in places.items()}
    here = page.file.src_uri
    folder = os.path.dirname(origins.get(here, f"docs/{here}"))

    def translated(link: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(folder, link[1]))
        place = places.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        return link[0] if place is None else os.path.relpath(place, os.path.dirname(here) or ".")

    return LINK.sub(translated, markdown)


class Doctests(griffe.Extension):
    """Shows the examples of docstrings as code; Markdown would take their ``>>>`` for quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub("```pycon\n\\g<0>\n```", obj.docstring.value)
