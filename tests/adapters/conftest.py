"""What the adapters' tests share: a model server of their own, over plain HTTP and over TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import pytest

from tests.model_server import ModelServer


@pytest.fixture
def server():
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that signs itself, and the key with it in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, signed, both = folder / "key.pem", folder / "signed.pem", folder / "both.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", *curve, *name, "-keyout", key, "-out", signed]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + signed.read_text())
    return both


@pytest.fixture
def tls_server(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ModelServer(tls=context) as running:
        yield running
