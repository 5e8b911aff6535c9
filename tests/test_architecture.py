"""The architecture, read from the source: the arrow points down, doors never commit, and everything says what it is."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from config import ROOT, Config

TOP = ["app.py", "server.py", "config.py", "cli.py", "mcp_server.py"]
FOLDERS = ["models", "adapters", "routes", "migrations"]
DOORS = ["routes", "cli", "mcp_server"]
FORBIDDEN_FOLDERS = ["services", "utils", "core", "common"]

# What each part may import of ours; anything else of ours is above it or beside it.
MAY_IMPORT = {
    "adapters": {"adapters"},
    "config": set(),
    "models": {"models", "adapters", "config"},
    "routes": {"routes", "models", "adapters", "config"},
    "cli": {"models", "adapters", "config"},
    "mcp_server": {"models", "adapters", "config"},
}
OURS = {"app", "server", "config", "cli", "mcp_server", "models", "adapters", "routes", "tests", "bench", "migrations"}
KNOWS_NEITHER_FLASK_NOR_THE_DATABASE = {
    "flask",
    "flask_sqlalchemy",
    "flask_migrate",
    "sqlalchemy",
    "alembic",
    "werkzeug",
}


def modules(*parts: str) -> list[Path]:
    files = [ROOT / f"{part}.py" for part in parts if (ROOT / f"{part}.py").exists()]
    return sorted(files + [file for part in parts for file in (ROOT / part).rglob("*.py")])


def part_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """The names of all modules that a file imports, wherever in it; relative ones written out."""
    found: set[str] = set()
    package = list(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return found


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


SOURCES = modules(*MAY_IMPORT)
ALL = sorted({*SOURCES, *(ROOT / name for name in TOP if (ROOT / name).exists()), *modules("migrations")})


def test_there_is_something_to_read():
    assert len(SOURCES) > 30
    assert {part_of(file) for file in SOURCES} >= {"routes", "models", "adapters", "config", "cli"}


@pytest.mark.parametrize("file", SOURCES, ids=named)
def test_the_arrow_points_down(file):
    ours = {name.partition(".")[0] for name in imports(file)} & OURS
    assert ours <= MAY_IMPORT[part_of(file)], f"{named(file)} imports {ours - MAY_IMPORT[part_of(file)]}"


@pytest.mark.parametrize("file", modules("adapters"), ids=named)
def test_adapters_know_neither_flask_nor_the_database(file):
    assert {name.partition(".")[0] for name in imports(file)} & KNOWS_NEITHER_FLASK_NOR_THE_DATABASE == set()


@pytest.mark.parametrize("file", modules("models"), ids=named)
def test_models_know_nothing_of_requests_and_pages(file):
    """They may ask for the app that they run in, and no more of Flask."""
    of_flask = {name for name in imports(file) if name.startswith(("flask.", "werkzeug"))}
    assert of_flask <= {"flask.Flask", "flask.current_app"}


@pytest.mark.parametrize("file", modules(*DOORS), ids=named)
def test_doors_never_commit(file):
    calls = [
        node.func.attr
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert {"commit", "rollback", "flush", "begin_nested"} & set(calls) == set()
    assert "db" not in {name.rpartition(".")[2] for name in imports(file) if name.startswith("models.base")}


@pytest.mark.parametrize("file", ALL, ids=named)
def test_every_module_opens_with_one_sentence_saying_who_lives_there(file):
    text = ast.get_docstring(ast.parse(file.read_text()))
    assert text, named(file)
    assert text.split("\n\n")[0].rstrip().endswith((".", ":", "…")), text


@pytest.mark.parametrize("file", modules("models", "adapters", "routes"), ids=named)
def test_there_are_types_on_every_function(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.returns is not None, f"{named(file)}: {node.name}"


def test_there_are_no_folders_for_everything_and_nothing():
    assert [name for name in FORBIDDEN_FOLDERS if (ROOT / name).exists()] == []


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_cycles_between_modules():
    """Imports at the top count; those for types alone or inside a function do not happen when a module is loaded."""
    files = {module_name(file): file for file in modules("models", "adapters", "routes")}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {target if target in files else str(node.module) for target in wanted} & files.keys()

    def leads_back(start: str) -> bool:
        seen, waiting = set(), list(graph[start])
        while waiting:
            name = waiting.pop()
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                waiting += graph[name]
        return False

    assert [name for name in graph if leads_back(name)] == []


# Documentation that tests read


@pytest.mark.parametrize("variable", [field.name.upper() for field in fields(Config)])
def test_every_variable_is_named_in_the_guide_for_operators(variable):
    guide = (ROOT / "docs" / "self-hosting.md").read_text()
    assert re.search(rf"\b{variable}\b", guide), f"docs/self-hosting.md does not name {variable}"


def test_the_guide_names_no_variable_that_is_not_read():
    guide = (ROOT / "docs" / "self-hosting.md").read_text()
    listed = set(re.findall(r"^\|\s*`([A-Z][A-Z0-9_]+)`", guide, re.MULTILINE))
    assert listed - {field.name.upper() for field in fields(Config)} == set()


def test_nothing_else_reads_the_environment():
    for file in ALL:
        if file.name != "config.py":
            text = file.read_text()
            assert "os.environ" not in text, named(file)
            assert "getenv" not in text, named(file)
