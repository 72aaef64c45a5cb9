"""TLS by URL and by settings, against a server with a certificate of a private authority."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacherl.errors import ConfigError, ReplayError
from cacherl.replay_settings import ReplaySettings
from replay_service.store import Replay


def openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make certificates with")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A private authority (ca.pem), another one (other.pem), and a certificate for 127.0.0.1 (server.pem, server.key)."""
    for name in ("ca", "other"):
        openssl(
            tmp_path, *f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem".split()
        )
    request = "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr"
    openssl(tmp_path, *request.split())
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem"
    openssl(tmp_path, *sign.split())
    return tmp_path


@pytest.fixture
def tls_url(server_binary: Path, certificates: Path, unused_tcp_port: int) -> Iterator[str]:
    options = (
        f"--port 0 --tls-port {unused_tcp_port} --tls-cert-file server.pem --tls-key-file server.key --tls-auth-clients no"
    )
    command = [str(server_binary), *options.split(), "--tls-ca-cert-file", "ca.pem", "--save", "", "--requirepass", "word"]
    with subprocess.Popen(command, cwd=certificates, stdout=subprocess.PIPE, text=True) as server:
        try:
            time.sleep(0.3)
            if server.poll() is not None:
                pytest.skip(f"{server_binary.name} was built without TLS")
            yield f"rediss://127.0.0.1:{unused_tcp_port}/0"
        finally:
            server.kill()


def rules(**changes) -> ReplaySettings:
    return ReplaySettings(warmup_steps=0, update_frequency=0, reconnect_s=0.5, password_env="WORD", **changes)


def test_the_certificate_is_checked_against_the_configured_authority(tls_url, certificates, monkeypatch, make_group):
    monkeypatch.setenv("WORD", "word")
    with Replay(tls_url, "pool", rules(ca_file=str(certificates / "ca.pem"))) as pool:
        pool.check()
        assert pool.push(make_group("g"), priority=1).status == "ok"
    with Replay(f"{tls_url}?ssl_ca_certs={certificates}/ca.pem", "pool", rules()) as pool:
        assert pool.get("g").group_id == "g"
    for settings in (rules(ca_file=str(certificates / "other.pem")), rules()):
        with (
            Replay(tls_url, "pool", settings) as pool,
            pytest.raises(ReplayError, match=r"is not trusted: .*certificate verify failed.*check replay\.ca_file"),
        ):
            pool.check()


def test_settings_that_cannot_be_used_are_refused_at_once(certificates, monkeypatch):
    monkeypatch.delenv("WORD", raising=False)
    for url, settings, message in (
        ("redis://h", ReplaySettings(ca_file=str(certificates / "ca.pem")), "ca_file needs a rediss:// URL"),
        ("rediss://h", ReplaySettings(ca_file="/absent.pem"), "ca_file: no file /absent.pem"),
        ("redis://h", rules(), "password_env: the environment has no variable WORD"),
    ):
        with pytest.raises(ConfigError, match=message):
            Replay(url, "pool", settings)
    with pytest.raises(ReplayError, match=r"http://h is not a redis:// or rediss:// URL"):
        Replay("http://h", "pool")
