"""The shape of the tree: includes, access to the environment, and the length of files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from include_law import MAY_INCLUDE, PRIVATE_HEADERS, ROOMS, SYSTEM_HEADERS_OF
from sentences import astray

ROOT = Path(__file__).resolve().parent.parent
CPP = ROOT / "cpp"
SUFFIXES = (".py", ".h", ".cc")

READS_THE_ENVIRONMENT = {
    "cpp/settings/read_config.cc",
    "rdmacoll/_start/bootstrap.py",
    "rdmacoll/_launch/agent.py",  # runs on other hosts, without the package
}

LINES_MAX = 400
# Longer files, and the reason for each.
LONGER: dict[str, str] = {
    "cpp/api/rdmacoll_c.h": "the C interface: its tables, with their documentation",
    "rdmacoll/_abi/library.py": "one class: the functions of the C interface, as Python calls them",
    "rdmacoll/_abi/mirror.py": "written from rdmacoll_c.h",
}

# Names of algorithms in other files: words of tf_cnn_benchmarks, ways between GPUs and NICs, and the number
# from which on the simulator draws algorithms separately.
NAMED_ELSEWHERE = {
    ("rdmacoll/_start/cluster.py", "parameter_server"),
    ("rdmacoll/cli/serve.py", "parameter_server"),
    ("cpp/cuda/direct_ways.cc", "direct"),
    ("rdmacoll/cli/doctor_gpu.py", "direct"),
    ("cpp/sim/script.cc", "a number"),
}

DOCSTRINGS_OF = "rdmacoll"

# Folders in which sentences of comments and docstrings begin with their subjects.
SUBJECT_FIRST_IN = ("benchmarks", "cpp", "examples", "rdmacoll", "release", "tests")

COLUMNS_OF_DOCUMENTS = 120
LINES_OF_DOCUMENTS = {"README.md": 120, "ARCHITECTURE.md": 200, "docs/internals/*.md": 150}
CELL_MAX = 200  # characters in a cell of a table
# Documents that name places in the tree. These places must exist.
MAPS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals/*.md")


def cpp_files() -> list[Path]:
    return sorted([*CPP.rglob("*.h"), *CPP.rglob("*.cc")])


def tracked(*patterns: str) -> list[Path]:
    """Returns tracked and new files of the tree that match, without ignored files."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE)


def test_every_folder_has_a_place_in_the_include_law() -> None:
    folders = {path.relative_to(CPP).parts[0] for path in cpp_files()}
    assert folders <= set(MAY_INCLUDE), folders - set(MAY_INCLUDE)


def test_includes_obey_the_law() -> None:
    broken = []
    for path in cpp_files():
        folder = path.relative_to(CPP).parts[0]
        for header in includes(path.read_text()):
            target = header.split("/", 1)[0]
            if target != folder and target not in MAY_INCLUDE[folder]:
                broken.append(f"{relative(path)} includes {header}")
            if not (CPP / header).exists():
                broken.append(f"{relative(path)} includes {header} not by its path under cpp/")
    assert not broken, "\n".join(broken)


def test_headers_of_other_systems_are_for_few() -> None:
    broken = []
    for path in cpp_files():
        text = path.read_text()
        for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
            if relative(path) not in SYSTEM_HEADERS_OF.get(header, {relative(path)}):
                broken.append(f"{relative(path)} includes {header}")
            if not relative(path).startswith(PRIVATE_HEADERS.get(header, "")):
                broken.append(f"{relative(path)} includes {header}")
    assert not broken, "\n".join(broken)


def test_the_law_has_no_circle() -> None:
    ordered: list[str] = []
    left = dict(MAY_INCLUDE)
    while left:
        ready = [folder for folder, needs in left.items() if needs <= set(ordered)]
        assert ready, f"a circle among {sorted(left)}"
        for folder in ready:
            ordered.append(folder)
            del left[folder]


def room_of(module: str) -> str:
    """The room of a module of the package.

    >>> room_of("rdmacoll.errors"), room_of("rdmacoll.engine.memory"), room_of("rdmacoll._abi")
    ('errors', 'engine', '_abi')
    """
    _, *parts = module.split(".")
    if parts == ["__main__"]:
        return "cli"
    return parts[0] if parts else "rdmacoll"


def imported(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, at any place."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for name in node.names:
                module = f"{node.module}.{name.name}"
                is_module = (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
                is_package = (ROOT / module.replace(".", "/")).is_dir()
                found.add(module if is_module or is_package else node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {module for module in found if module.split(".")[0] == "rdmacoll"}


def test_imports_go_down_the_rooms() -> None:
    height = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    broken = []
    for path in sorted((ROOT / "rdmacoll").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        own = room_of(module)
        for other in sorted(imported(path)):
            if room_of(other) != own and height[room_of(other)] >= height[own]:
                broken.append(f"{relative(path)} imports {other}")
    assert not broken, "\n".join(broken)


def test_transports_do_not_know_each_other() -> None:
    broken = []
    for path in (CPP / "transport").rglob("*.*"):
        own = path.relative_to(CPP / "transport").parts[0]
        for header in includes(path.read_text()):
            parts = header.split("/")
            if parts[0] == "transport" and len(parts) == 3 and parts[1] != own:
                broken.append(f"{relative(path)} includes {header}")
    assert not broken, "\n".join(broken)


def test_an_algorithm_is_named_in_its_own_file_and_its_row_only() -> None:
    table = CPP / "collectives" / "algorithms.cc"
    rows = re.findall(r"^  ROW\((\w+)\)", table.read_text(), re.MULTILINE)
    owners = {
        name: path
        for path in (CPP / "collectives").glob("*.cc")
        for name in re.findall(r'\.name = "(\w+)"', path.read_text())
    }
    assert len(rows) == len(owners) >= 19
    assert set(rows) == set(owners)
    sources = [*cpp_files(), *tracked("rdmacoll/*.py", "benchmarks/*.py", "release/*.py", "examples/*.py")]
    found = set()
    for path in sources:
        text = path.read_text()
        for name, owner in owners.items():
            # A name of one word is also a word of English.
            pattern = rf"\b{name}\b" if "_" in name else rf"""(["']){name}\1"""
            if path not in (owner, table) and re.search(pattern, text):
                found.add((relative(path), name))
        if path not in owners.values() and re.search(r"\bAlgorithm(?: \w+)?[{(]\d", text):
            found.add((relative(path), "a number"))
    assert found == NAMED_ELSEWHERE


def test_the_environment_is_read_in_few_files_only() -> None:
    pattern = re.compile(r"\b(?:secure_)?getenv\b|\benviron\b|\bputenv\b|\bsetenv\b")
    found = {
        relative(path)
        for path in [*cpp_files(), *(ROOT / "rdmacoll").rglob("*.py")]
        if any(pattern.search(line) for line in _code_lines(path))
    }
    # These take the variables as a mapping called `environ`.
    launcher = {"rdmacoll/_launch/job.py", "rdmacoll/_launch/request.py", "rdmacoll/cli/run.py"}
    pure = {"rdmacoll/_start/launch.py", *launcher}
    assert found - pure <= READS_THE_ENVIRONMENT, found
    for name in pure:
        assert "os.environ" not in (ROOT / name).read_text()


def _code_lines(path: Path) -> list[str]:
    comment = "//" if path.suffix in (".cc", ".h") else "#"
    return [line.split(comment, 1)[0] for line in path.read_text().splitlines()]


def test_files_are_short_or_have_a_reason() -> None:
    sources = tracked("*.py", "*.cc", "*.h", "Makefile", "*.cmake")
    long = {
        relative(path): count for path in sources if (count := len(path.read_text().splitlines())) > LINES_MAX
    }
    unexplained = {name: count for name, count in long.items() if name not in LONGER}
    assert not unexplained, unexplained
    assert set(LONGER) <= set(long), f"these are short by now: {set(LONGER) - set(long)}"


def test_the_mirror_of_the_c_interface_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, CPP / "api" / "mirror.py", "--check"], text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_headers_are_included_once() -> None:
    for path in CPP.rglob("*.h"):
        text = path.read_text()
        assert "#pragma once" in text or "#ifndef" in text, relative(path)


def test_what_leads_astray_stays_out_of_cpp() -> None:
    broken = []
    for path in cpp_files():
        for number, line in enumerate(_code_lines(path), 1):
            if re.search(r"\bgoto\b|\bstrcpy\b|\bsprintf\b|\busing namespace\b|\b__builtin_ia32_", line):
                broken.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not broken, "\n".join(broken)


def test_public_names_have_docstrings() -> None:
    missing = []
    for path in sorted((ROOT / DOCSTRINGS_OF).rglob("*.py")):
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            missing.append(f"{relative(path)}: the module")
        missing += [f"{relative(path)}: {name}" for name in _undocumented(tree, "")]
    assert not missing, "\n".join(missing)


def _undocumented(node: ast.AST, prefix: str) -> list[str]:
    names = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if child.name.startswith("_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in child.decorator_list]
        inherited = any(d.endswith((".setter", "overload", "override")) for d in decorators)
        if not ast.get_docstring(child) and not inherited:
            names.append(prefix + child.name)
        if isinstance(child, ast.ClassDef):
            names += _undocumented(child, f"{prefix}{child.name}.")
    return names


def test_sentences_begin_with_their_subjects() -> None:
    found = [
        f"{relative(path)}:{line}: {sentence}"
        for path in tracked(*(f"{folder}/*{suffix}" for folder in SUBJECT_FIRST_IN for suffix in SUFFIXES))
        for line, sentence in astray(path)
    ]
    assert not found, "\n".join(found)


def test_it_is_seen_how_sentences_begin(tmp_path: Path) -> None:
    python, cpp = tmp_path / "module.py", tmp_path / "source.cc"
    python.write_text(
        '"""What this is.\n\nWhy? Where from? It is of two\nparts. (Of course.)\n\n- that\n  one\n- It.\n\n'
        '>>> 1\nOf one\n"""\n'
        "x = 1  # who uses it\n# Whoever reads\n# this. That is well.\ny = '# Of no comment'\n"
    )
    cpp.write_text(
        '// Where it\n// lies.\n\n/* Of two. Whatever. */ int x;  // of y\nauto s = "// That";\n'
        "int y = 1'000;  // what isn't\n"
    )
    assert list(astray(python)) == [
        (1, "What this is."),
        (1, "(Of course.)"),
        (1, "that one"),
        (13, "who uses it"),
        (14, "Whoever reads this."),
        (14, "That is well."),
    ]
    assert list(astray(cpp)) == [(1, "Where it lies."), (4, "Of two."), (4, "of y"), (6, "what isn't")]


def test_lines_of_documents_fit_the_page() -> None:
    """Excludes rows of tables, code and the targets of links."""
    long = [
        f"{relative(path)}:{number}: {len(line)} columns: {line[:60]}"
        for path in tracked("*.md")
        for number, line in enumerate(_prose(path.read_text()), 1)
        if len(line) > COLUMNS_OF_DOCUMENTS
    ]
    assert not long, "\n".join(long)


def test_documents_are_short() -> None:
    for pattern, most in LINES_OF_DOCUMENTS.items():
        for path in tracked(pattern):
            lines = len(path.read_text().splitlines())
            assert lines <= most, f"{relative(path)}: {lines} lines of {most}"


def test_cells_of_tables_are_short() -> None:
    long = [
        f"{relative(path)}:{number}: {len(cell)} characters: {cell[:60]}"
        for path in tracked("*.md")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.startswith("|")
        for cell in re.split(r"(?<!\\)\|", line.strip("|"))
        if len(cell.strip()) > CELL_MAX
    ]
    assert not long, "\n".join(long)


def test_places_that_documents_name_exist() -> None:
    folders = "benchmarks|cpp|docs|examples|rdmacoll|release|tests"
    named = [
        (relative(path), place)
        for path in tracked(*MAPS)
        for place in re.findall(rf"`((?:{folders})/[\w./*-]*)`", path.read_text())
    ]
    assert named
    missing = [f"{name}: {place}" for name, place in named if not list(ROOT.glob(place.rstrip("/")))]
    assert not missing, "\n".join(missing)


def _prose(markdown: str) -> list[str]:
    """Returns the lines. Lines of tables and of code are empty, and links have no targets."""
    lines, in_code = [], False
    for line in markdown.splitlines():
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        is_apart = in_code or is_fence or line.startswith(("|", "    "))
        lines.append("" if is_apart else re.sub(r"\]\([^)\s]*\)", "]", line))
    return lines


def test_the_tree_speaks_of_nothing_but_the_project() -> None:
    # The words are split, so that this file does not match itself.
    words = ["/ho" + "me/", "/wo" + "rk/", "/ro" + "ot/", "TO" + "DO", "FIX" + "ME", "XX" + "X"]
    pattern = re.compile("|".join(words))
    own = [path for path in tracked() if path.suffix not in (".json", ".png", ".seed")]
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in own
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_build_product_is_tracked() -> None:
    products = [path for path in tracked() if path.suffix in (".so", ".o", ".a", ".pyc", ".whl")]
    assert not products, products


def test_every_planted_bug_still_applies() -> None:
    refused = []
    for patch in tracked("tests/mutations/*.patch"):
        command = ["git", "apply", "--check", str(patch)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            refused.append(f"{relative(patch)}: make it anew\n{result.stderr}")
    assert not refused, "\n".join(refused)
