"""The guard, without Gradio: who is let in, and what is never passed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from guda.web.guard import Guard


def ask(path: str = "/", local: bool = True, **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Through the guard to an app that answers 200 to anything."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(k.encode(), v.encode()) for k, v in headers.items()]
    asyncio.run(Guard(app, local)({"type": "http", "path": path, "headers": named}, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize("host", ["localhost", "localhost:7860", "LOCALHOST:1", "127.0.0.1:7860", "[::1]:7860"])
def test_loopback_names(host: str) -> None:
    assert ask(host=host)[0] == 200
    assert ask(host=host, origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "host", ["", "example.org", "localhost.example.org:7860", "127.0.0.1.nip.io", "[::1", "10.0.0.1"]
)
def test_other_names_on_loopback(host: str) -> None:
    assert ask(host=host)[0] == 403
    assert ask(host=host, local=False)[0] == 200  # listening for others, or behind a login


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://guda.example.org", "guda.example.org", 200),
        ("https://guda.example.org", "guda.example.org:443", 200),
        ("http://guda.example.org", "guda.example.org:443", 403),
        ("https://example.org", "guda.example.org", 403),
        ("http://a:7861", "a:7860", 403),
        ("http://a", "a:7860", 403),
        ("null", "a", 403),
        ("", "a", 403),
        ("http://a:99999", "a", 403),
        ("chrome-extension://a", "a", 403),
    ],
)
def test_origins(origin: str, host: str, status: int) -> None:
    assert ask(host=host, origin=origin, local=False)[0] == status


def test_addresses_are_not_fetched() -> None:
    for path in (
        "/gradio_api/file=https://x/y",
        "/gradio_api/file/HTTP://x",
        "/gradio_api/proxy=x",
        "/file%3Dhttp%3A//x",
    ):
        status, headers, _ = ask(path, host="localhost")
        assert status == 403, path
        assert b"content-security-policy" in headers
    assert ask("/gradio_api/file=/tmp/upload/https.png", host="localhost")[2] == b"in"
    assert ask("/manifest.json", host="localhost")[2] == b"{}"  # answered by the guard: it tells no name
