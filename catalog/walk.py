"""Finds and reads the Python files of a tree without trusting it: no link is followed, no special file opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from catalog.errors import SourceUnusable
from catalog.types import Failure

MAX_FILE_BYTES = 1024 * 1024  # the parser takes up to 900 bytes of memory for each
MAX_FILES = 50_000
PRUNED = frozenset({"__pycache__", "node_modules", "site-packages", "__pypackages__"})


@dataclass(frozen=True, slots=True)
class Found:
    """The Python files below a root, sorted by path.

    Args:
        root: absolute.
        files: relative POSIX paths.
        failures: folders that could not be listed, names that are not UTF-8.
        skipped: links and special files with a `.py` name.
    """

    root: str
    files: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    skipped: tuple[str, ...] = field(default=())


def find_sources(path: str | Path, *, exclude: tuple[str, ...] = ()) -> Found:
    """List a tree's Python files.

    Hidden files and folders, byte code, `node_modules`, `site-packages` and virtual environments are left out.

    Args:
        path: a folder; a link to one is resolved once, links below it are never followed.
        exclude: shell patterns on relative paths, of files or folders.

    Raises:
        SourceUnusable: no such folder, not readable, no Python file, or more than 50,000 of them.
    """
    try:
        root = os.path.realpath(os.fspath(path), strict=True)
    except (OSError, ValueError) as exc:
        raise SourceUnusable(path=str(path), reason=_reason(exc)) from exc
    if not os.path.isdir(root):
        raise SourceUnusable(path=str(path), reason="not a folder")
    try:
        os.scandir(root).close()
    except OSError as exc:
        raise SourceUnusable(path=str(path), reason=_reason(exc)) from exc
    files: list[str] = []
    failures: list[Failure] = []
    skipped: list[str] = []
    for relative, regular in _walk(root, exclude, failures):
        (files if regular else skipped).append(relative)
        if len(files) > MAX_FILES:
            raise SourceUnusable(path=str(path), reason=f"more than {MAX_FILES} Python files; scan a part of it")
    if not files and not failures:
        raise SourceUnusable(path=str(path), reason="holds no Python source")
    return Found(root, tuple(sorted(files)), tuple(sorted(failures)), tuple(sorted(skipped)))


def read_source(root: str, relative: str) -> bytes:
    """A regular file's bytes; the file is checked again after opening.

    Raises:
        OSError: not readable, no longer a regular file, or over `MAX_FILE_BYTES`.
    """
    handle = os.open(os.path.join(root, relative), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(f"over {MAX_FILE_BYTES // 1024**2} MiB; leave it out with --exclude")
    return data


def _walk(root: str, exclude: tuple[str, ...], failures: list[Failure]) -> Iterator[tuple[str, bool]]:
    """Relative paths of Python files, and whether each is a regular file."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                listed = list(entries)
        except OSError as exc:
            failures.append(Failure(printable(f"{folder}/"), _reason(exc)))
            continue
        if folder and any(entry.name == "pyvenv.cfg" for entry in listed):
            continue
        for entry in listed:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(".") or any(fnmatchcase(relative, pattern) for pattern in exclude):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in PRUNED:
                    pending.append(relative)
            elif entry.name.endswith(".py"):
                if printable(relative) != relative:
                    failures.append(Failure(printable(relative), "its name is not UTF-8"))
                else:
                    yield relative, entry.is_file(follow_symlinks=False)


def printable(text: str) -> str:
    """`text` without lone surrogates, which neither a terminal nor PostgreSQL takes."""
    return text.encode("utf-8", "replace").decode()


def _reason(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else str(exc)) or type(exc).__name__
