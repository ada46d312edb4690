"""A round of a conversation beside the peers: in memory and with everything in PostgreSQL, in one run on one server.

    python bench/turns.py [repeats] [who]      3 and all of them

The same conversation for all: a model that answers at once, 50 rounds of one call of one read tool that returns 180
characters, then the answer. Ours is `rounds.py`. The peers' scripts are not ours: `BENCH_PEERS` names the folder with
`w1_<peer>.py` (in memory) and `w2_<peer>.py` (persisted), which print JSON lines for 10, 50 and 100 rounds;
`BENCH_VENVS` the folder with their virtual environments. Whoever is not there is skipped, and named. All are run anew
in each repeat.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bed import HERE, known, peer_python, say, scratch, spread, stop_on_signals, table

PEERS = {  # name: virtual environment, scripts
    "floor": ("floor", ("w1_floor", "w2_floor")),
    "langgraph": ("langgraph", ("w1_langgraph", "w2_langgraph")),
    "openai": ("openai", ("w1_openai", "w2_openai")),
    "pydanticai": ("pydanticai", ("w1_pydanticai", "w2_pydanticai_dbos")),
    "smolagents": ("smolagents", ("w1_smolagents",)),
}
ROUNDS, OURS_REPEATS = 50, 12
LIMIT_S = 180
THEIRS = (  # databases that the peers' scripts make and leave
    "bench_w2_floor",
    "bench_w2_langgraph_async",
    "bench_w2_langgraph_sync",
    "bench_w2_langgraph_exit",
    "bench_w2_openai",
    "bench_w2_dbos",
)
Key = tuple[str, str]  # W1 or W2, who


def environment() -> dict[str, str]:
    """The server of `DATABASE_URL` in libpq's words, which all the peers' drivers understand."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    host = parse_qs(parts.query).get("host", [unquote(parts.hostname or "")])[0]
    port, user = str(parts.port or 5432), parts.username or "postgres"
    given = {"PGHOST": host, "PGPORT": port, "PGUSER": user, "PGPASSWORD": unquote(parts.password or "")}
    scripts = {"BENCH_PGHOST": "", "BENCH_PGPORT": port, "BENCH_PGUSER": user, "BENCH_COUNT": "0"}
    return {**os.environ, **{k: v for k, v in given.items() if v}, **scripts, "PYTHONWARNINGS": "ignore"}


def run(argv: Sequence[str], *, env: dict[str, str], folder: Path, who: str) -> Iterator[dict[str, Any]]:
    """The JSON lines of one script; a script that fails or hangs is named, and the run goes on."""
    with subprocess.Popen(
        argv, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            out, err = "", f"did not end within {LIMIT_S} s"
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        say(failed=who, why=err[-600:])
        return
    for line in out.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def theirs() -> set[str]:
    """Which databases of these names are on the server."""
    import psycopg

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        found = server.execute("SELECT datname FROM pg_database WHERE datname = ANY(%s)", [list(THEIRS)])
        return {name for (name,) in found}


def drop_theirs(but: set[str]) -> None:
    """Drop what the peers' scripts left on the server, but for what was there before."""
    import psycopg

    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        for name in set(THEIRS) - but:
            server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


def figures(line: dict[str, Any]) -> tuple[float, float] | None:
    """Wall and CPU time of a round, in µs (in memory) or ms (persisted); None: another kind of line."""
    found = line.get("us_per_round") or line.get("ms_per_round")
    if not found:
        return None
    if "wall" in found:
        return found["wall"]["median"], found["cpu"]["median"]
    return found["median"], found["cpu"]


def scripts(who: Sequence[str]) -> Iterator[tuple[str, list[str], Path]]:
    """What to run, and what is not here."""
    folder = Path(os.environ.get("BENCH_PEERS", "/nowhere"))
    for name in who:
        if name == "ours":
            yield name, [sys.executable, str(HERE / "rounds.py")], HERE
            continue
        venv, files = PEERS[name]
        python = peer_python(venv)
        if python is None or not all((folder / f"{file}.py").exists() for file in files):
            say(skipped=name, why=f"no {venv}/bin/python in BENCH_VENVS, or no {files[0]}.py in BENCH_PEERS")
            continue
        for file in files:
            yield name, [python, str(folder / f"{file}.py")], folder


def main(arguments: Sequence[str]) -> None:
    stop_on_signals()
    defaults = ("3", ",".join(["ours", *PEERS]))
    repeats, who = (*arguments, *defaults[len(arguments) :])
    wall, cpu = defaultdict[Key, list[float]](list), defaultdict[Key, list[float]](list)
    ratios = defaultdict[str, list[float]](list)
    env, todo = environment(), list(scripts(known(who, ["ours", *PEERS])))
    with scratch() as folder, ExitStack() as after:
        after.callback(drop_theirs, theirs())
        env["BENCH_OUT"] = str(folder / "lines")
        for _ in range(int(repeats)):
            for name, argv, place in todo:
                given = [*argv, str(ROUNDS), str(OURS_REPEATS)] if name == "ours" else argv
                own = dict(os.environ) if name == "ours" else env
                for line in run(given, env=own, folder=place, who=f"{name}: {Path(argv[-1]).name}"):
                    say(**line)
                    if "ratio" in line:
                        ratios[line["a_further_round_to"]].append(line["ratio"])
                    found = figures(line)
                    if found and line["n"] == ROUNDS:
                        wall[line["w"], line["peer"]].append(found[0])
                        cpu[line["w"], line["peer"]].append(found[1])
    report(wall, cpu, ratios)


def report(wall: dict[Key, list[float]], cpu: dict[Key, list[float]], ratios: dict[str, list[float]]) -> None:
    """Two tables: medians of the repeats, and their range."""
    for kind, title, digits in (("W1", "in memory, µs a round", 0), ("W2", "in PostgreSQL, ms a round", 2)):
        ours = wall.get((kind, "ours"))
        lines = [
            [
                peer,
                spread(each, digits),
                spread(cpu[kind, peer], digits),
                f"{statistics.median(each) / statistics.median(ours):.1f}" if ours else "–",
                len(each),
            ]
            for (w, peer), each in wall.items()
            if w == kind
        ]
        if lines:
            table([f"{title} ({ROUNDS} rounds)", "wall, median (range)", "CPU", "× ours", "repeats"], lines)
    for name, each in ratios.items():
        say(a_further_round_to=name, ratio=spread(each, 2))


if __name__ == "__main__":
    main(sys.argv[1:])
