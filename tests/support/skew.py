"""Processes whose clock is off: a shim between them and the C library's wall clock, built on the spot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off(void) {
    const char *text = getenv("CLOCK_OFF_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, ts);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += off();
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(tv, zone);
    if (!result) tv->tv_sec += off();
    return result;
}

time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out) *out = ts.tv_sec;
    return ts.tv_sec;
}
"""


def compiler() -> str | None:
    """The C compiler, None when there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def clock_shim(folder: Path) -> Path:
    """Build the shim in `folder`."""
    cc = compiler()
    assert cc is not None, "the test is left out without a compiler"
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def off_by(shim: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is off by `seconds`; the monotonic clock stays as it is."""
    return {"LD_PRELOAD": str(shim), "CLOCK_OFF_S": str(seconds)}
