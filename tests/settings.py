"""Django's settings for a test session: nothing of the developer's `.env`, a state folder and servers of its own.

With DATABASE_URL and REDIS_URL in the environment those servers are used, and none is started.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from config.embedded import servers_of
from config.state import StateFolder

SESSION = "CAPSTAN_TEST_SESSION"  # set in whatever the session starts, xdist's workers included
MODEL_VARIABLES = re.compile(r"LLM_|OPENAI_|ANTHROPIC_|OLLAMA_")

os.environ["CAPSTAN_ENV_FILE"] = ""
os.environ["DEBUG"] = "true"
os.environ.setdefault("SECRET_KEY", "tests-only-not-secret-" + "x" * 40)
if not os.environ.get("CAPSTAN_LIVE_LLM"):  # an exported key never makes a test call a real model
    for name in [name for name in os.environ if MODEL_VARIABLES.match(name)]:
        del os.environ[name]
    os.environ["LLM_PROVIDER"] = "demo"

STARTS_SERVERS = SESSION not in os.environ and not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"))
if SESSION not in os.environ:
    _folder = Path(tempfile.mkdtemp(prefix="capstan-tests-"))
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    if os.geteuid() == 0:
        _folder.chmod(0o711)  # the servers run as `nobody`
    os.environ[SESSION] = str(_folder)
    os.environ["CAPSTAN_STATE_DIR"] = str(_folder / "state")
    if STARTS_SERVERS:
        _servers = servers_of(StateFolder((_folder / "state").resolve()))
        os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = _servers.database_url, _servers.redis_url

if _worker := re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", "")):
    os.environ["REDIS_URL"] = re.sub(r"[?]db=\d+$", f"?db={int(_worker[1]) + 1}", os.environ["REDIS_URL"])

from config.settings import *  # noqa: E402, F403
from config.settings import INSTALLED_APPS  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a good one takes its time
INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.clearing"]
