"""Step 1: what a scan finds in trees of every kind, and that it runs none of them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from catalog.errors import SourceUnusable
from catalog.gather import gather, label_of
from catalog.imports import ast_imports, module_imports
from catalog.naming import name_modules
from catalog.parse import parse_file
from catalog.types import Candidate, Edge, Gathered
from catalog.walk import MAX_FILE_BYTES, find_sources, read_source
from tests.catalog.trees import SHOP, write_tree


def by_key(found: Gathered) -> dict[str, Candidate]:
    return {candidate.key: candidate for candidate in found.candidates}


def test_every_kind_is_recognised(tmp_path: Path) -> None:
    found = by_key(gather(write_tree(tmp_path, SHOP)))
    kinds = {key: candidate.kind for key, candidate in found.items()}
    assert kinds["module:shop"] == "package"
    assert kinds["module:shop.models"] == "module"
    assert kinds["class:shop.apps.ShopConfig"] == "app"
    assert kinds["class:shop.models.Product"] == "model"
    assert kinds["class:shop.models.Book"] == "model", "a model through its base class"
    assert kinds["function:shop.views.detail"] == "view"
    assert kinds["function:shop.tasks.restock"] == "task"
    assert kinds["class:shop.management.commands.sell.Command"] == "command"
    assert kinds["function:shop.prices.price_of"] == "function"
    assert kinds["external:celery"] == "external"


def test_docstrings_lines_and_containers_are_kept(tmp_path: Path) -> None:
    found = by_key(gather(write_tree(tmp_path, SHOP)))
    product = found["class:shop.models.Product"]
    assert (product.summary, product.path, product.line, product.end_line, product.parent) == (
        "A thing for sale.",
        "shop/models.py",
        5,
        6,
        "module:shop.models",
    )
    assert found["module:shop.models"].parent == "module:shop"
    assert found["module:manage"].parent == ""
    assert found["function:shop.tasks.restock"].line == 4, "a decorator belongs to what it decorates"


def test_edges_name_modules_externals_and_base_classes(tmp_path: Path) -> None:
    edges = set(gather(write_tree(tmp_path, SHOP)).edges)
    assert Edge("module:shop.views", "imports", "module:shop.prices") in edges
    assert Edge("module:shop.prices", "imports", "module:shop.models") in edges
    assert Edge("module:manage", "imports", "module:shop.models") in edges, "a file outside the package"
    assert Edge("module:shop.models", "imports", "external:django") in edges
    assert Edge("class:shop.models.Book", "inherits", "class:shop.models.Product") in edges


def test_a_base_class_is_followed_through_a_re_export(tmp_path: Path) -> None:
    tree = {
        "p/__init__.py": "from p.base import Root as Base\n",
        "p/base.py": "from django.db.models import Model\n\nclass Root(Model):\n    pass\n",
        "p/use.py": "import p\n\nclass Leaf(p.Base):\n    pass\n",
    }
    found = gather(write_tree(tmp_path, tree))
    assert by_key(found)["class:p.use.Leaf"].kind == "model"
    assert Edge("class:p.use.Leaf", "inherits", "class:p.base.Root") in found.edges


def test_a_folder_inside_a_package_keeps_its_full_name(tmp_path: Path) -> None:
    write_tree(tmp_path, SHOP)
    found = gather(tmp_path / "shop" / "management")
    assert label_of(tmp_path / "shop" / "management") == "shop.management"
    assert "module:shop.management.commands.sell" in by_key(found)


def test_a_tree_is_called_what_its_path_says_and_a_package_what_python_says(tmp_path: Path) -> None:
    write_tree(tmp_path / "releases" / "2026-11", SHOP)
    (tmp_path / "current").symlink_to(tmp_path / "releases" / "2026-11")
    (tmp_path / "link").symlink_to(tmp_path / "releases" / "2026-11" / "shop")
    assert label_of(tmp_path / "current") == label_of(f"{tmp_path}/releases/../current/") == "current"
    assert label_of(tmp_path / "link") == "shop"
    assert label_of("/") == "root"


def test_the_key_outlives_a_module_that_becomes_a_package(tmp_path: Path) -> None:
    before = by_key(gather(write_tree(tmp_path / "a", {"p/__init__.py": "", "p/x.py": ""})))
    after = by_key(gather(write_tree(tmp_path / "b", {"p/__init__.py": "", "p/x/__init__.py": ""})))
    assert (before["module:p.x"].kind, after["module:p.x"].kind) == ("module", "package")


def test_two_files_never_share_a_name() -> None:
    paths = ["src/pkg/__init__.py", "other/pkg/__init__.py", "a.py", "src/a.py", "x/y.py", "x.y.py", "tools/run.py"]
    names = name_modules(paths, root_name="root")
    assert len({named.name for named in names.values()}) == len(paths)
    assert names["src/pkg/__init__.py"].name == "other.pkg" or names["other/pkg/__init__.py"].name == "pkg"
    assert names["tools/run.py"].name == "tools.run"


@pytest.mark.parametrize("package", ["celery", "django.contrib"])
def test_both_import_readers_agree_on_real_packages(package: str) -> None:
    """`grimp` and the names that `ast` shows must tell the same story, or the fallback would change the graph."""
    root = str(Path(import_module(package).__file__ or "").parent)
    found = find_sources(root)
    names = name_modules(found.files, root_name=package)
    files = [parse_file(read_source(root, path), names[path]) for path in found.files]
    known = {file.module.name for file in files}
    assert module_imports(root, files) == set(ast_imports(files, known))


def test_nothing_that_is_scanned_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    bomb = f"open({str(mark)!r}, 'w').close()\nraise SystemExit(9)\n"
    tree = {"bomb/__init__.py": bomb, "bomb/conftest.py": bomb, "sitecustomize.py": bomb, "grimp/__init__.py": bomb}
    before = list(sys.path), set(sys.modules)
    found = gather(write_tree(tmp_path / "tree", tree))
    assert not mark.exists()
    assert (sys.path, "bomb" in sys.modules) == (before[0], False)
    assert "module:bomb" in by_key(found)


def test_links_and_special_files_are_not_followed(tmp_path: Path) -> None:
    outside = write_tree(tmp_path / "outside", {"secret.py": "SECRET = 1\n"})
    tree = write_tree(tmp_path / "tree", {"p/__init__.py": ""})
    (tree / "p" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "p" / "away").symlink_to(outside, target_is_directory=True)
    (tree / "p" / "link.py").symlink_to(outside / "secret.py")
    os.mkfifo(tree / "p" / "pipe.py")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "s.py"))
    found = gather(tree)
    assert [c.key for c in found.candidates] == ["module:p"]
    assert found.skipped == ("p/link.py", "p/pipe.py", "s.py")


def test_hidden_folders_byte_code_and_environments_are_left_out(tmp_path: Path) -> None:
    tree = {
        "a.py": "",
        ".tox/b.py": "",
        "__pycache__/c.py": "",
        "node_modules/x/d.py": "",
        "env/pyvenv.cfg": "",
        "env/lib/e.py": "",
        ".hidden.py": "",
    }
    assert find_sources(write_tree(tmp_path, tree)).files == ("a.py",)


def test_text_in_any_encoding_is_read(tmp_path: Path) -> None:
    tree = {
        "p/__init__.py": "",
        "p/bom.py": b"\xef\xbb\xbf'''With a mark.'''\nimport p.latin\n",
        "p/latin.py": "# -*- coding: latin-1 -*-\n'''Gr\xfc\xdfe.'''\nfrom . import bom\n".encode("latin-1"),
        "p/crlf.py": b"'''Windows.'''\r\nimport p\r\n",
        "p/ident.py": "class \xc4pfel:\n    pass\n",
    }
    found = gather(write_tree(tmp_path, tree))
    assert found.failures == ()
    assert by_key(found)["module:p.latin"].summary == "Gr\xfc\xdfe."
    assert Edge("module:p.latin", "imports", "module:p.bom") in found.edges
    assert Edge("module:p.bom", "imports", "module:p.latin") in found.edges


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"def broken(:\n", "syntax error"),
        (b"x = 1\x00\n", "null byte"),
        (b"'''\xff\xfe'''\n", "utf-8"),
        (b"# coding: no-such-codec\n", "encoding"),
        (b"x = " + b"(" * 5_000 + b")" * 5_000, "nested"),
        (b"x = " + b"-" * 100_000 + b"1", "nested too deeply"),
        (b"x = 1\n" * (MAX_FILE_BYTES // 6 + 1), "leave it out with --exclude"),
    ],
    ids=["syntax", "nul", "bytes", "codec", "parentheses", "nesting", "size"],
)
def test_a_file_that_cannot_be_parsed_is_named_and_spoils_no_other(tmp_path: Path, content: bytes, reason: str) -> None:
    tree = write_tree(tmp_path, {"p/__init__.py": "", "p/good.py": "import p\n", "p/bad.py": content})
    found = gather(tree)
    assert [f.path for f in found.failures] == ["p/bad.py"]
    assert reason in found.failures[0].reason.lower()
    assert Edge("module:p.good", "imports", "module:p") in found.edges


@pytest.mark.parametrize(
    "content",
    ["from ....nowhere import x\n", "from .... import x\n", "import a.b.c.d\n", "x = " + "not " * 900 + "0\n"],
)
def test_odd_but_valid_code_leaves_the_import_graph_whole(
    tmp_path: Path, content: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = write_tree(tmp_path, {"p/__init__.py": "", "p/good.py": "import p\n", "p/odd.py": content})
    found = gather(tree)
    assert found.failures == ()
    assert Edge("module:p.good", "imports", "module:p") in found.edges
    assert "panicked" not in capfd.readouterr().err


def test_text_that_postgresql_refuses_is_cleaned(tmp_path: Path) -> None:
    found = gather(write_tree(tmp_path, {"m.py": '"""A\\x00 B\\ud800\\nC."""\n'}))
    assert by_key(found)["module:m"].summary == "A\ufffd B\ufffd C."


def test_a_name_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    write_tree(tmp_path, {"good.py": ""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.py")).write_text("")
    found = gather(tmp_path)
    assert [f.reason for f in found.failures] == ["its name is not UTF-8"]


def test_a_very_deep_tree_ends_in_a_reported_folder_not_in_a_crash(tmp_path: Path) -> None:
    write_tree(tmp_path, {"good.py": ""})
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(120):
            os.mkdir("d" * 60, dir_fd=here)
            deeper = os.open("d" * 60, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = deeper
    finally:
        os.close(here)
    found = gather(tmp_path)
    assert [f.reason for f in found.failures] == ["File name too long"]


def test_a_path_that_holds_nothing_to_scan_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.py").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    reasons = {}
    for path in ("missing", "empty", "file.py", "loop", "a\0b"):
        with pytest.raises(SourceUnusable) as raised:
            gather(tmp_path / path if "\0" not in path else path)
        reasons[path] = raised.value.details["reason"]
    assert reasons == {
        "missing": "No such file or directory",
        "empty": "holds no Python source",
        "file.py": "not a folder",
        "loop": "Too many levels of symbolic links",
        "a\0b": "embedded null byte",
    }


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Permission bits do not bind root, so become somebody else for a while."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(was)


def test_what_may_not_be_read_is_reported() -> None:
    with TemporaryDirectory() as folder:
        root = write_tree(Path(folder), {"good.py": "", "closed.py": "", "shut/in.py": ""})
        root.chmod(0o755)
        for closed in ("closed.py", "shut"):
            (root / closed).chmod(0)
        with as_an_ordinary_user():
            found = gather(root)
            with pytest.raises(SourceUnusable) as raised:
                gather(root / "shut")
        assert [str(f) for f in found.failures] == ["closed.py: Permission denied", "shut/: Permission denied"]
        assert raised.value.details["reason"] == "Permission denied"
        (root / "shut").chmod(0o755)


def test_exclude_leaves_a_part_of_the_tree_unseen(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"a.py": "", "old/b.py": "def (:", "old/deep/c.py": ""})
    found = gather(tree, exclude=["old"])
    assert ([c.key for c in found.candidates], found.failures) == (["module:a"], ())


def test_two_scans_of_one_tree_are_equal(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, SHOP)
    assert gather(tree) == gather(tree)
