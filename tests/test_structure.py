"""The floor plan: rooms import only what stands below them, and no files import in a circle.

``docs/structure.md`` lists the rooms from the top of the house to its foundation; what is said
there is what is checked here. Imports inside functions and under ``TYPE_CHECKING`` count like any
other.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
PACKAGES = ("hierspec", "hierspec_lab")


@cache
def modules() -> dict[str, Path]:
    """Every module by name."""
    found = {}
    for package in PACKAGES:
        for path in (SRC / package).rglob("*.py"):
            parts = path.relative_to(SRC).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """What every module imports of the project, wherever in the file it says so."""
    return {name: set(imported(name, path)) for name, path in modules().items()}


def imported(name: str, path: Path) -> list[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    out = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join(
                [*(base if node.level else []), *([node.module] if node.module else [])]
            )
            out += [
                full if (full := f"{source}.{alias.name}") in modules() else source
                for alias in node.names
            ]
    return [one for one in out if one in modules() and one != name]


def room(module: str) -> str:
    """``hierspec.planner.search`` → ``planner``, ``hierspec_lab.papers.p1`` → ``lab/papers``; the
    façades are ``hierspec`` and ``lab`` themselves."""
    package, *inside = module.split(".")
    if package == "hierspec_lab":
        return "/".join(["lab", *inside[:1]])
    return inside[0] if inside else package


def rooms() -> list[str]:
    """The rooms as the page lists them, foundation first."""
    page = (ROOT / "docs" / "structure.md").read_text()
    table = page.partition("<!-- rooms -->")[2].partition("<!-- end of rooms -->")[0]
    return re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE)[::-1]


def test_the_page_lists_every_room():
    # The façades and ``python -m hierspec`` stand on top of everything.
    assert {room(name) for name in modules()} - {"hierspec", "lab", "__main__"} == set(rooms())


def test_every_room_has_its_tests():
    elsewhere = {"api": "test_api.py"}
    exempt = {"errors"}  # one exception, which the tests of every refusal expect
    tests = Path(__file__).parent
    missing = [
        room
        for room in set(rooms()) - exempt
        if not any(tests.glob(elsewhere.get(room, f"{room}/**/test_*.py")))
    ]
    assert missing == []


def test_every_folder_of_a_room_has_its_tests():
    """A file among the room's tests is named for the folder, or for one of its modules."""
    exempt = {"paths"}  # they are taken by `verify_batch`, and compared in test_verify.py
    missing = []
    for init in SRC.glob("*/**/__init__.py"):
        folder, parts = init.parent, init.parent.relative_to(SRC).parts
        if len(parts) < 3 or folder.name in exempt:
            continue
        room_tests = Path(__file__).parent / room(".".join(parts))
        modules_of_tests = {f"test_{path.stem}" for path in (folder, *folder.glob("*.py"))}
        if not any(
            path.stem in modules_of_tests
            or folder.name in (path.parent.name, *path.stem.split("_"))
            for path in room_tests.rglob("test_*.py")
        ):
            missing.append(folder.relative_to(SRC).as_posix())
    assert missing == []


def test_files_of_tests_are_named_for_what_they_test():
    """Not for being a file's second half."""
    paths = list(Path(__file__).parent.rglob("*.py"))
    halves = ("_more", "_misc", "_2", "_traps")
    assert [path.stem for path in paths if path.stem.endswith(halves)] == []


def test_rooms_import_only_what_stands_below_them():
    floor = {name: i for i, name in enumerate([*rooms(), "hierspec", "__main__"])}
    upward = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if other != "hierspec" and floor[room(other)] > floor[room(module)]
    ]
    assert not upward, "\n".join(sorted(upward))
    # Of the façade, rooms ask for its version alone.
    of_the_facade = {
        (name, alias.name)
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module, node.level) == ("hierspec", 0)
        for alias in node.names
        if f"hierspec.{alias.name}" not in modules() and room(name) in rooms()
    }
    assert {what for name, what in of_the_facade if not room(name).startswith("lab/")} <= {
        "__version__"
    }


def test_the_product_knows_nothing_of_the_laboratory():
    """Not by name either: it finds the laboratory's commands by their entry points."""
    named = [
        str(path.relative_to(ROOT))
        for path in (SRC / "hierspec").rglob("*.py")
        if "hierspec_lab" in path.read_text()
    ]
    assert named == []


def test_imports_within_a_folder_are_relative_and_others_absolute():
    wrong = []
    for name, path in modules().items():
        folder = ".".join(path.relative_to(SRC).parent.parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or folder == "hierspec":
                continue
            in_folder = node.level == 0 and folder in (
                node.module,
                str(node.module).rpartition(".")[0],
            )
            if in_folder or node.level > 1:
                wrong.append(f"{name}, line {node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_no_files_import_in_a_circle():
    graph = {
        module: {other for other in others if other != "hierspec"}
        for module, others in imports().items()
        if module != "hierspec"
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_the_package_opens_on_about_twenty_rooms():
    entries = [path for path in (SRC / "hierspec").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 27, sorted(path.name for path in entries)


def test_the_core_knows_nothing_but_tensors_and_itself():
    allowed = {"core", "errors", "utils"}
    for module, others in imports().items():
        if room(module) == "core":
            assert {room(other) for other in others} <= allowed, module


def test_nodes_are_made_in_two_places():
    """Of levels by the builder, of other nodes beside their classes."""
    makers = {
        name
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("Draft", "Verify", "Concatenate")
    }
    assert makers == {"hierspec.config.nodes", "hierspec.core.nodes"}


def test_a_type_name_has_one_meaning() -> None:
    """Classes, aliases of types and of imports, private ones too: a name found twice makes a reader
    look twice."""
    places: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            for defined in defined_names(node):
                # Constants and type variables are all capitals.
                if defined.lstrip("_")[:1].isupper() and not defined.isupper():
                    places.setdefault(defined, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def defined_names(statement: ast.stmt) -> list[str]:
    """What a statement names; not what it imports under its own name."""
    if isinstance(statement, ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname for alias in statement.names if alias.asname]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []
