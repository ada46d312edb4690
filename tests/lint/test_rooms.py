"""The import contract names the rooms that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def rooms_on_disk() -> set[str]:
    return {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}


def test_the_contract_lists_the_rooms_on_disk():
    assert set(PROJECT["root_packages"]) == rooms_on_disk()


def test_every_room_has_its_place_in_the_layers():
    layers = next(contract for contract in PROJECT["contracts"] if contract["type"] == "layers")["layers"]
    placed = {room.strip("() ") for line in layers for room in line.split("|")}
    assert rooms_on_disk() <= placed


def test_domain_apps_stand_on_the_doors_line():
    from django.conf import settings

    layers = next(contract for contract in PROJECT["contracts"] if contract["type"] == "layers")["layers"]
    doors = next(line for line in layers if "chat" in line)
    assert {room.strip() for room in doors.split("|")} == {"chat", *settings.DOMAIN_APPS}
