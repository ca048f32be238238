"""What the site's build does to pages: README and changelog join it, links out of docs/ are named.

On disk every link leads to a file of the repository. On the site those outside ``docs/`` have no
page, so their text stays and the path stands beside it.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
GENERATED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#:]+|src/[^)#:]+)(?:#[^)]*)?\)")
_ROLE_HTML = re.compile(r":(?:class|func|meth|mod|attr|data):<code>~?([^<]+)</code>")


def on_files(files, config):
    """README is the first page, and the changelog the last: each has one home."""
    for name, page in GENERATED.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that leave docs/ become their text and a path."""
    here = PurePosixPath("docs") / PurePosixPath(page.file.src_uri).parent
    return _LINK.sub(lambda link: _outside(here, link), markdown)


def on_page_content(html, page, config, files):
    """Docstrings name other parts as Sphinx does; here the name is enough."""
    return _ROLE_HTML.sub(lambda role: f"<code>{role[1].rpartition('.')[2]}</code>", html)


def _outside(here, link):
    text, path = link[1], link[2]
    where = []
    for part in [*([] if path.startswith("src/") else here.parts), *PurePosixPath(path).parts]:
        if part == "..":
            where.pop()
        else:
            where.append(part)
    if where and where[0] == "docs":
        return link[0]
    name = "/".join(where)
    return text if text.strip("`") in name else f"{text} (`{name}`)"
