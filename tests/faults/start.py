"""A start that is expected to fail: what it says, and with which exit code."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.server import ROOT

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


class Refusal(NamedTuple):
    code: int
    said: str


def refused_start(data_dir: Path, *, preexec: Any = None, timeout: float = 30, **environment: Any) -> Refusal:
    """Starts the server, which must end by itself."""
    known = {name: value for name, value in os.environ.items() if name not in {"LLM_BASE_URL", "LLM_MODEL"}}
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env=known
        | {"DATA_DIR": str(data_dir), "PORT": "0"}
        | {name: str(value) for name, value in environment.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=preexec,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        raise AssertionError(f"It did not end by itself:\n{said}") from None
    return Refusal(process.returncode, said)


def like_anybody() -> None:
    """Before the exec: root who may not write where the permissions forbid it, as any other user may not."""
    if os.getuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")
