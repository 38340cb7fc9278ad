"""mkdocs hooks of the site: generated pages, links into the repository, and a check that nothing is fetched elsewhere.

Pages of docs/ are written for two readers, a repository browser and the site. So links keep pointing to where files are
(`../benchmarks/results/path.md`); every file outside docs/ that a page links to becomes part of the site, and a link to
a file that does not exist fails the build.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))

from pages import GENERATED, NAMED

ROOT = Path(__file__).parents[2]

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_ELSEWHERE = r"""=["']?(?:https?:)?//[^"'> ]+"""
FETCHED = re.compile(
    rf"<(?:script|img|iframe|source)[^>]+src{_ELSEWHERE}|<link[^>]+rel=.?(?:stylesheet|pre)[^>]*href{_ELSEWHERE}"
)

_origin: dict[str, str] = {}  # page of the site -> the repository file that it shows


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, then what pages link to outside docs/, then what these link to."""
    _origin.clear()
    texts: dict[str, str] = {}
    for file in files.documentation_pages():
        _origin[file.src_uri] = f"docs/{file.src_uri}"
        texts[file.src_uri] = Path(file.abs_src_path).read_text()
    for uri, make in GENERATED.items():
        _origin[uri], texts[uri] = f"docs/{uri}", make()
        files.append(File.generated(config, uri, content=texts[uri]))
    for source, uri in NAMED.items():
        _origin[uri], texts[uri] = source, (ROOT / source).read_text()
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    todo = list(texts)
    while todo:
        page = todo.pop()
        for target in _outside(texts[page], _origin[page]):
            uri = _uri(target)
            if files.get_file_from_path(uri) is not None:
                continue
            if (ROOT / target).is_dir():
                content = _listing(ROOT / target)
                file = File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV)
            else:
                content = (ROOT / target).read_text() if uri.endswith(".md") else ""
                path = str(ROOT / target)
                file = File.generated(config, uri, abs_src_path=path, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(file)
            if uri.endswith(".md"):
                _origin[uri], texts[uri] = target if (ROOT / target).is_file() else f"{target}/index.md", content
                todo.append(uri)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    origin = posixpath.dirname(_origin[here])

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        found = posixpath.normpath(posixpath.join(origin, target))
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        uri = found.removeprefix("docs/") if found.startswith("docs/") else _uri(found)
        return f"{before}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor or ''}{after}"

    return "".join(part if code else LINK.sub(moved, part) for code, part in _parts(markdown))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Reading the site tells no other server about it."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} makes a browser fetch from elsewhere: {found[0]}")
    return output


def _outside(text: str, origin: str) -> Iterator[str]:
    """Repository files and folders outside docs/ that a page links to."""
    for code, part in _parts(text):
        for match in [] if code else LINK.finditer(part):
            target = match[2]
            if "://" in target or target.startswith(("mailto:", "/")):
                continue
            found = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
            if found.startswith("docs/"):
                continue
            if found.startswith("..") or not (ROOT / found).exists():
                raise PluginError(f"{origin} links to {target}, which does not exist")
            yield found


def _uri(target: str) -> str:
    """Where the site has a file of the repository; a folder is a page that lists it."""
    if target in NAMED:
        return NAMED[target]
    return f"repository/{target}/index.md" if (ROOT / target).is_dir() else f"repository/{target}"


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    rows = "\n".join(f"- [{name}]({name})" for name in names)
    return f"# {folder.relative_to(ROOT).as_posix()}\n\n{rows}\n"


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it is a fenced code block, text), in order."""
    for i, part in enumerate(re.split(r"(^```.*?^```[ ]*$)", text, flags=re.M | re.S)):
        yield i % 2 == 1, part
