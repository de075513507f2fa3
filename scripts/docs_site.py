"""A hook of MkDocs, named in mkdocs.yml, that adapts this repository's pages for its site.

The README, CONTRIBUTING, CHANGELOG and the tasks' READMEs are pages too, and so are the notebooks; the recipes and
examples are files of the site. Links are those of the repository, so that they work on a code host as well; here they
are translated. A link to a sound becomes a player. The API reference begins with the public names; each package has a
page with all its modules.
"""

from __future__ import annotations

import html
import json
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
SOUND = re.compile(r'<a href="([^"]+\.mp3)">(.*?)</a>')
PUBLIC = {
    "train and use": ("fit", "open", "TrainedRun", "load_config"),
    "a task of one's own": (
        "SimpleTask",
        "check",
        "Task",
        "Dataset",
        "Meters",
        "Batch",
        "Term",
        "Callback",
        "UserError",
    ),
    "names for configurations": (
        *("register_task", "register_loss", "register_auxiliary_loss", "register_optimizer", "register_schedule"),
        "register_tokenizer",
    ),
}
"""The names of ``import vaak`` that aren't packages, as the API reference has them."""
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")


def repository_files() -> dict[str, str]:
    """The site's files that are outside docs/: path in the repository → path in the site."""
    found = {"README.md": "index.md", "CITATION.cff": "CITATION.cff", "SECURITY.md": "security-policy.md"}
    found |= {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    for page in SOURCE.glob("vaak/tasks/*/README.md"):
        found[page.relative_to(ROOT).as_posix()] = f"tasks/{page.parent.name}/index.md"
    for copied in (*ROOT.glob("configs/**/*.yml"), *ROOT.glob("examples/*.py")):
        path = copied.relative_to(ROOT).as_posix()
        found[path] = path
    for notebook in ROOT.glob("docs/notebooks/*.ipynb"):
        found[notebook.relative_to(ROOT).as_posix()] = f"notebooks/{notebook.stem}.md"
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


def public_page() -> str:
    """The names of ``import vaak`` by what they are for, each where it is defined."""
    homes = dict(re.findall(r'"(\w+)": "(vaak[\w.]*)"', (SOURCE / "vaak/__init__.py").read_text(encoding="utf-8")))
    lines = ["# `import vaak`\n\nGuide: [library.md](../library.md). Every other package has its own page.\n"]
    for purpose, names in PUBLIC.items():
        lines.append(f"## {purpose.capitalize()}\n")
        for name in names:
            options = "{heading_level: 3, show_root_full_path: false, skip_local_inventory: true}"
            lines.append(f"::: {homes[name]}.{name}\n    options: {options}\n")
    return "\n".join(lines)


def notebook_page(notebook: Path) -> str:
    """A notebook as Markdown, with the outputs that are stored in it."""
    lines = [f"[Download this notebook]({notebook.name})\n"]
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        lines += [shown_output(output) for output in cell.get("outputs", ())]
    heading, *rest = lines[1:]
    return "\n\n".join([heading, lines[0], *rest])


def shown_output(output: dict[str, Any]) -> str:
    """An output of a cell as HTML: the richest of its forms."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    form = next(form for form in ("text/html", "image/png", "text/plain") if form in data)
    value = "".join(data[form])
    if form == "image/png":
        return f'<img alt="Output of this cell" src="data:image/png;base64,{value.strip()}">'
    # without blank lines, which would end a block of HTML in Markdown
    return re.sub(
        r"\n\s*\n",
        "\n",
        f"<div>{value}</div>" if form == "text/html" else f'<pre class="output">{html.escape(value)}</pre>',
    )


def on_config(config: MkDocsConfig) -> None:
    """Name the version at the foot of each page, and add the API reference to the navigation.

    The reference has the public names, and a section for each package of ``vaak``.
    """
    (version,) = re.findall(r'^__version__ = "(.+)"', (SOURCE / "vaak/__init__.py").read_text(encoding="utf-8"), re.M)
    config.copyright = f"Vaak {version}"
    sections: dict[str, list[Any]] = {}
    for package in packages():
        parts = package.split(".")
        sections.setdefault(".".join(parts[:2]), []).append({package: f"api/{package}.md"})
    assert config.nav is not None
    pages = [{section: below} for section, below in sections.items() if section != "vaak"]
    config.nav.append({"API": [{"import vaak": "api/index.md"}, *pages]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the files of the repository and the pages of the API."""
    for path, place in repository_files().items():
        if path.endswith(".ipynb"):
            files.append(File.generated(config, place, content=notebook_page(ROOT / path)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "api/index.md", content=public_page()))
    for package, modules in packages().items():
        if package in ("", "vaak"):  # api/index.md
            continue
        about = f"# {package}\n\n::: {package}\n    options: {{members: false, show_root_heading: false}}\n\n"
        about = f"---\nsearch: {{boost: 0.2}}\n---\n{about}"  # guides are found first
        text = about + "\n".join(f"::: {module}\n" for module in modules)
        files.append(File.generated(config, f"api/{package}.md", content=text))


def on_page_content(content: str, **_: Any) -> str:
    """Show links to sounds as players."""
    player = r'<figure><audio controls preload="none" src="\1"></audio><figcaption>\2</figcaption></figure>'
    return SOUND.sub(player, content)


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
