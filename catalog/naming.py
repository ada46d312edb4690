"""Gives every file of a tree the dotted name that Python would import it by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SOURCE_ROOTS = frozenset({"src", "lib"})


@dataclass(frozen=True, slots=True)
class ModuleName:
    """A file's place in the import system.

    Args:
        path: relative POSIX path.
        name: dotted; unique in the tree.
        is_package: the file is an `__init__.py`.
        top: name of its regular top-level package, empty for a file that lies in none.
        top_folder: that package's folder, relative.
    """

    path: str
    name: str
    is_package: bool
    top: str = ""
    top_folder: str = ""


def name_modules(files: Iterable[str], *, root_name: str) -> dict[str, ModuleName]:
    """Names by path.

    A folder with `__init__.py` whose parent has none is a top-level package, wherever it lies; when two have the same
    name, the one nearest to the root keeps it and the others are named by their path. Other files are named by their
    path, less a leading `src` or `lib`. A name that is taken becomes the path itself.

    Args:
        files: relative POSIX paths.
        root_name: what the root folder is called; it counts when the root is itself a package.
    """
    paths = sorted(files)
    packages = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == "__init__.py"}
    tops: dict[str, str] = {}
    for folder in sorted((f for f in packages if _parent(f) not in packages or not f), key=lambda f: (f.count("/"), f)):
        short = folder.rpartition("/")[2] or root_name
        tops[folder] = _by_path(folder) if short in tops.values() else short
    names: dict[str, ModuleName] = {}
    taken: set[str] = set()
    # Packages first: beside `a/__init__.py` a file `a.py` cannot be imported.
    for path in sorted(paths, key=lambda p: (not p.endswith("__init__.py"), p)):
        named = _name(path, packages, tops)
        if named.name in taken:
            named = ModuleName(path, path, named.is_package)
        taken.add(named.name)
        names[path] = named
    return names


def _name(path: str, packages: set[str], tops: dict[str, str]) -> ModuleName:
    folder, _, file = path.rpartition("/")
    stem = file.removesuffix(".py")
    top = folder
    if folder in packages:
        while top and _parent(top) in packages:
            top = _parent(top)
        inner = folder[len(top) :].strip("/").replace("/", ".")
        parts = [tops[top], inner, "" if stem == "__init__" else stem]
        return ModuleName(path, ".".join(p for p in parts if p), stem == "__init__", tops[top], top)
    return ModuleName(path, ".".join(p for p in (_by_path(folder), stem) if p), False)


def _by_path(folder: str) -> str:
    parts = folder.split("/") if folder else []
    return ".".join(parts[1:] if parts and parts[0] in SOURCE_ROOTS else parts)


def _parent(folder: str) -> str:
    """The folder above; the root is its own parent, so callers ask for it first."""
    return folder.rpartition("/")[0]
