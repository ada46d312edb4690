"""The import graph: `grimp`'s scanner over regular packages, the `ast` imports for all other files.

`grimp.build_graph` finds packages through `sys.path` and the import system of this process. Its scanner is called
directly instead, with the files that were read: nothing is imported, no path is added, and one broken file does not
spoil the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import grimp  # noqa: F401  (configures the scanner)
from grimp.application.ports.modulefinder import FoundPackage, ModuleFile
from grimp.application.scanning import scan_imports
from grimp.domain.valueobjects import Module
from grimp.exceptions import GrimpException

from catalog.parse import ParsedFile


def module_imports(root: str, files: Sequence[ParsedFile]) -> set[tuple[str, str]]:
    """Pairs (importing module, imported): a module of the tree, or the top-level name of an external.

    Args:
        root: the scanned folder, absolute.
        files: what was parsed.
    """
    known = {file.module.name for file in files}
    by_grimp = [file for file in files if _importable(file)]
    rest = [file for file in files if not _importable(file)]
    try:
        scanned = set(_scan(root, by_grimp, known))
    except GrimpException:  # its parser refuses some deep nesting that Python's takes
        scanned = set(ast_imports(by_grimp, known))
    return {*scanned, *ast_imports(rest, known)}


def ast_imports(files: Iterable[ParsedFile], known: set[str]) -> Iterator[tuple[str, str]]:
    """The same pairs, from the names that each file imports.

    Args:
        files: what was parsed.
        known: all module names of the tree.
    """
    tops = {name.partition(".")[0] for name in known}
    for file in files:
        for target in file.imports:
            resolved = _resolve(target, known, tops)
            if resolved and resolved != file.module.name:
                yield file.module.name, resolved


def _importable(file: ParsedFile) -> bool:
    """Whether the scanner finds this file again from its dotted name."""
    module = file.module
    return bool(module.top) and file.plain and all(part.isidentifier() for part in module.name.split("."))


def _scan(root: str, files: Sequence[ParsedFile], known: set[str]) -> Iterator[tuple[str, str]]:
    packages: dict[tuple[str, str], set[ModuleFile]] = {}
    for file in files:
        key = (file.module.top, file.module.top_folder)
        packages.setdefault(key, set()).add(ModuleFile(Module(file.module.name), 0.0))
    if not packages:
        return
    found = {
        FoundPackage(name=name, directory=os.path.join(root, folder).rstrip("/"), module_files=frozenset(modules))
        for (name, folder), modules in packages.items()
    }
    scanned = scan_imports(
        {module for modules in packages.values() for module in modules},
        found_packages=found,
        include_external_packages=True,
        exclude_type_checking_imports=False,
    )
    tops = {name.partition(".")[0] for name in known}
    for direct in (direct for imports in scanned.values() for direct in imports):
        # What lies in the tree but in none of the packages looks external to the scanner.
        resolved = _resolve(direct.imported.name, known, tops)
        if resolved and resolved != direct.importer.name:
            yield direct.importer.name, resolved


def _resolve(target: str, known: set[str], tops: set[str]) -> str:
    """The longest part of `target` that is a module of the tree, else its top-level name, unless that is ours."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in known:
            return name
    return "" if parts[0] in tops else parts[0]
