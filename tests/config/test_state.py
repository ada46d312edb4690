"""The state folder's lock and what is told through it."""

import os
import shutil
import stat
from pathlib import Path

import psycopg
import pytest

from config.embedded import ROOT_DATA, EmbeddedServers, remove_sockets, servers_of
from config.errors import StartRefused
from config.state import Servers, StateFolder


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


def test_servers_are_told_while_the_lock_is_held_and_not_after(state: StateFolder):
    servers = Servers(database_url="postgres://a@b/c", redis_url="redis://d/0")
    descriptor = state.lock()
    state.announce(servers)
    assert stat.S_IMODE(state.servers_file.stat().st_mode) == 0o600
    assert state.running_servers() == servers
    os.close(descriptor)
    assert state.running_servers() is None


def test_a_second_lock_is_refused_and_names_the_holder(state: StateFolder):
    descriptor = state.lock()
    with pytest.raises(StartRefused, match=f"already runs .*process {os.getpid()}"):
        state.lock()
    os.close(descriptor)
    os.close(state.lock())


def test_a_folder_that_cannot_be_made_names_the_variable(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused, match="CAPSTAN_STATE_DIR"):
        StateFolder(tmp_path / "file" / "state").create()


def test_servers_of_a_folder_out_of_their_account_s_reach_start_elsewhere(state: StateFolder, tmp_path: Path):
    tmp_path.chmod(0o700)
    try:
        with (tmp_path / "log").open("wb") as log, EmbeddedServers(state, durable=False, log=log):
            with psycopg.connect(servers_of(state).database_url) as connection:
                connection.execute("CREATE EXTENSION vector")
                distance = connection.execute("SELECT '[1,2]'::vector <-> '[1,5]'::vector").fetchone()
            assert distance == (3.0,)
            moved = (state.path / "data").is_symlink()
            assert moved is (os.geteuid() == 0)
            if moved:
                assert (state.path / "data").resolve().parent == ROOT_DATA
    finally:
        remove_sockets(state)
        shutil.rmtree((state.path / "data").resolve(), ignore_errors=True)
