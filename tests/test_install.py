"""What `make run` installs is enough to serve: the environment of the tests has more and would hide a gap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import ROOT, Server


@pytest.mark.serial
def test_the_pinned_requirements_are_all_that_the_server_needs(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"]
    subprocess.run(install, cwd=ROOT, check=True)
    with Server(tmp_path / "data", [python, "app.py"]) as server:
        assert server.get("/health").json() == {"status": "ok"}
        assert server.get("/").status_code == 200
        chat = server.post("/api/chat/sessions").json()["id"]
        body = {"request_id": "8a0e3a54-8d0b-4a86-9d5a-5d4c3a3f2b10", "query": "Hello"}
        assert server.post(f"/api/chat/sessions/{chat}/turn", body).json()["status"] == "completed"
    doctor = subprocess.run(
        [python, "-m", "flask", "--app", "app", "doctor"], cwd=ROOT, env={"DATA_DIR": str(tmp_path)}
    )
    assert doctor.returncode == 0
