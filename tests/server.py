"""The real server as a process of its own, for tests that kill it and measurements that load it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parent.parent


class Server:
    """`with Server(data_dir, LLM_BASE_URL=…) as server:`; `server.url` is where it listens."""

    def __init__(
        self, data_dir: Path, command: list[str] | None = None, preexec: Any = None, **environment: Any
    ) -> None:
        self.data_dir = data_dir
        self.command = command or [sys.executable, "app.py"]
        self.preexec = preexec
        self.environment = {"DATA_DIR": str(data_dir), "PORT": "0"} | {k: str(v) for k, v in environment.items()}
        self.output: list[str] = []
        self.url = ""

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def start(self) -> Server:
        """Waits until it says where it listens; where it ends instead, says what it said."""
        self.url = ""
        environment = {name: value for name, value in os.environ.items() if name not in {"LLM_BASE_URL", "LLM_MODEL"}}
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=self.preexec,
        )
        listening = threading.Event()
        threading.Thread(target=self._read_output, args=(listening,), daemon=True).start()
        listening.wait(30)
        if not self.url:
            self.kill()
            raise RuntimeError("The server did not start:\n" + "".join(self.output))
        return self

    def _read_output(self, listening: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(r"serving on (http://\S+)", line):
                self.url = found[1]
                listening.set()
        listening.set()

    def kill(self, how: int = signal.SIGKILL) -> None:
        """The whole process group at once, as a power cut would."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.wait(20)
        if how == signal.SIGKILL:
            self._wait_for_the_group()

    def _wait_for_the_group(self) -> None:
        """The workers die a moment after the master; until then they hold their locks."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)

    def wait_until_dead(self, timeout: float = 20) -> None:
        self.process.wait(timeout)

    def worker_pids(self) -> list[int]:
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(pid) for pid in children.split()]

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=options.pop("timeout", 60), **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return requests.post(
            self.url + path, json={} if body is None else body, timeout=options.pop("timeout", 60), **options
        )

    def wait_for(self, condition: Any, timeout: float = 15) -> Any:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError("It did not happen in time.")
