"""Step 1 of the extraction: a source tree as raw candidates and edges, the same way each time (SC-02).

One process reads the tree: Django's 2,800 files take a few seconds, which a pool would halve at the cost of a second
copy of every value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from catalog.kinds import Resolver, kind_of
from catalog.naming import ModuleName, name_modules
from catalog.parse import Definition, ParsedFile, Unparsable, parse_file
from catalog.types import Candidate, Edge, Failure, Gathered
from catalog.walk import find_sources, printable, read_source


def gather(
    path: str | Path, *, exclude: Sequence[str] = (), progress: Callable[[int, int], None] = lambda done, total: None
) -> Gathered:
    """Scan a source tree. Nothing in it is executed or imported, no link is followed.

    Args:
        path: the tree's folder.
        exclude: shell patterns on relative paths, left out unseen.
        progress: told how many files of how many were read.

    Returns:
        All candidates, noise included; files that could not be read are in `failures`, for the caller to judge.

    Raises:
        SourceUnusable: there is nothing to scan at `path`.

    Source: SC-02 step 1.
    """
    found = find_sources(path, exclude=tuple(exclude))
    root_name = _root_name(found.root)
    names = name_modules(found.files, root_name=root_name)
    parsed: list[ParsedFile] = []
    failures = list(found.failures)
    for done, relative in enumerate(found.files, start=1):
        outcome = _read(found.root, names[relative])
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            parsed.append(outcome)
        progress(done, len(found.files))
    from catalog.imports import module_imports  # grimp is loaded by a scan, not with the server

    resolver = Resolver(parsed)
    modules = {file.module.name for file in parsed}
    candidates = [c for file in parsed for c in _candidates(file, modules, resolver)]
    pairs = module_imports(found.root, parsed)
    externals = sorted({target for _, target in pairs if target not in modules})
    candidates += [Candidate(key=f"external:{name}", kind="external", name=name, path="") for name in externals]
    return Gathered(
        files=len(found.files),
        candidates=tuple(candidates),
        edges=tuple(sorted({*_import_edges(pairs, modules), *_inheritance(parsed, resolver)})),
        failures=tuple(sorted(failures)),
        skipped=found.skipped,
    )


def label_of(path: str | Path) -> str:
    """What a tree is called when nobody says: its dotted name for a package, else the folder's name as it was given."""
    root = os.path.realpath(path)
    if os.path.isfile(os.path.join(root, "__init__.py")):
        return printable(_root_name(root))
    return printable(os.path.basename(os.path.abspath(path)) or "root")


def _root_name(root: str) -> str:
    """The folder's name; below a package, its dotted name from the package's top."""
    parts = [os.path.basename(root) or "root"]
    above = os.path.dirname(root)
    if os.path.isfile(os.path.join(root, "__init__.py")):
        while os.path.isfile(os.path.join(above, "__init__.py")) and above != os.path.dirname(above):
            parts.insert(0, os.path.basename(above))
            above = os.path.dirname(above)
    return ".".join(parts)


def _read(root: str, module: ModuleName) -> ParsedFile | Failure:
    try:
        return parse_file(read_source(root, module.path), module)
    except OSError as exc:
        return Failure(module.path, exc.strerror or str(exc))
    except Unparsable as exc:
        return Failure(module.path, exc.reason, exc.line)


def _candidates(file: ParsedFile, modules: set[str], resolver: Resolver) -> Iterator[Candidate]:
    module = file.module
    key = f"module:{module.name}"
    yield Candidate(
        key=key,
        kind="package" if module.is_package else "module",
        name=module.path.rpartition("/")[2] if "/" in module.name else module.name.rpartition(".")[2],
        path=module.path,
        line=1,
        end_line=max(file.lines, 1),
        summary=file.summary,
        parent=_parent(module.name, modules),
        attributes={"bytes": file.size},
        generated=file.generated,
    )
    for definition in file.definitions:
        form = "class" if definition.is_class else "function"
        yield Candidate(
            key=f"{form}:{module.name}.{definition.name}",
            kind=kind_of(definition, module.name, resolver),
            name=definition.name,
            path=module.path,
            line=definition.line,
            end_line=definition.end_line,
            summary=definition.summary,
            parent=key,
            attributes=_attributes(definition),
            generated=file.generated,
        )


def _attributes(definition: Definition) -> dict[str, object]:
    found = {
        "bases": list(definition.bases),
        "decorators": list(definition.decorators),
        "methods": definition.methods,
        "async": definition.is_async,
    }
    return {name: value for name, value in found.items() if value}


def _parent(name: str, modules: set[str]) -> str:
    above = name.rpartition(".")[0]
    while above and above not in modules:
        above = above.rpartition(".")[0]
    return f"module:{above}" if above else ""


def _import_edges(pairs: set[tuple[str, str]], modules: set[str]) -> Iterator[Edge]:
    for source, target in pairs:
        yield Edge(f"module:{source}", "imports", f"{'module' if target in modules else 'external'}:{target}")


def _inheritance(files: Sequence[ParsedFile], resolver: Resolver) -> Iterator[Edge]:
    for file in files:
        for definition in file.definitions:
            source = f"{file.module.name}.{definition.name}"
            for base in definition.bases:
                target = resolver.class_name(base)
                if resolver.is_known(target) and target != source:
                    yield Edge(f"class:{source}", "inherits", f"class:{target}")
