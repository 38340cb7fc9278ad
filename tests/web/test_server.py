"""The app as a server, without a browser: its HTTP API, its manners, and what the command line refuses.

The guard, without Gradio: who is let in, and what is never passed on.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tinyrun import SET, copy_run
from uploads import grey, png_header

from guda.errors import GudaError
from guda.web.access import Attempts, Token, check_exposure, link, make_token, parse_auth
from guda.web.app import sheet
from guda.web.ask import BUDGET, FIRST, OWN, THREE, rule_of
from guda.web.guard import BODY, UPLOADS, Guard
from guda.web.server import free
from guda.web.service import Service
from guda.web.upload_folder import BLOCK, UploadFolder, holding, upload_folder
from waiting import wait_for

SECRET = "token-of-these-tests"
BEARER = {"authorization": f"Bearer {SECRET}"}

DOCS = Path(__file__).parents[2] / "docs" / "web.md"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


needs_gradio = pytest.mark.e2e  # `make test-e2e` installs it


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("gradio")
    import uvicorn

    from guda.web.server import web_app

    root = tmp_path_factory.mktemp("served")
    os.environ["GRADIO_TEMP_DIR"] = str(root / "uploads")
    service, port = Service(copy_run(root / "run").root), free_port()
    service.warm()
    app = web_app(service, root, "127.0.0.1", port, None, SECRET, UploadFolder(root / "uploads", 2**20))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive(), "the server to start or to fail")
    assert server.started
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)
    service.close()


@needs_gradio
def test_the_example_of_the_docs_runs(address: str, tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert code is not None
    picture = grey(tmp_path / "picture.png", seed=7)
    text = code[1].replace("http://127.0.0.1:7860", address).replace("picture.png", str(picture))
    text = text.replace("TOKEN", SECRET)
    names: dict[str, object] = {}
    exec(text, names)
    answer, again, known, board = (names[n] for n in ("answer", "again", "known", "board"))
    assert answer == again
    assert isinstance(answer, dict)
    assert set(answer) == {
        "result", "picture", "prompt", "method", "unit", "sign", "estimand", "rule", "settled", "evaluations",
        "verdict", "origin", "placebo_floor", "groups",
    }  # fmt: skip
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text().partition("A result:")[2]))
    assert set(answer) <= documented
    assert set(answer["groups"][0]) <= documented
    assert known[0] == {"result": answer["result"], "method": "retrack", "rule": "top1@0.95", "pictures": 1}  # type: ignore[index]
    assert set(board) == {SET}  # type: ignore[call-overload]


@needs_gradio
def test_the_api_refuses_with_the_same_line(address: str, tmp_path: Path) -> None:
    from gradio_client import Client, handle_file

    client = Client(address, headers=BEARER, verbose=False)
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_header(10_000, 10_000))
    asked = {"prompt": "", "rule": "top1@0.95", "method": ""}
    with pytest.raises(Exception, match="100 megapixels"):
        client.predict(handle_file(str(bomb)), **asked, api_name="/attribute")
    with pytest.raises(Exception, match="takes no prompt"):
        client.predict(handle_file(str(grey(tmp_path / "p.png"))), **(asked | {"prompt": "a"}), api_name="/attribute")
    with pytest.raises(Exception, match="no stored result"):
        client.predict("../run", "", "", "", api_name="/result")
    note = client.predict(handle_file(str(grey(tmp_path / "q.png", (16, 16)))), **asked, api_name="/attribute")["note"]
    assert "16 x 16" in note


@needs_gradio
def test_a_path_or_an_address_is_no_upload(address: str, tmp_path: Path) -> None:
    """Or anybody could read pictures of this machine, and make it fetch what they like."""
    import httpx

    path = grey(tmp_path / "private.png")
    for told in (str(path), f"file://{path}", f"{address}/favicon.ico", "http://example.org/picture.png"):
        body = {"data": [{"path": told, "meta": {"_type": "gradio.FileData"}}, "", "top1@0.95", ""]}
        event = httpx.post(f"{address}/gradio_api/call/attribute", json=body, headers=BEARER).json()["event_id"]
        said = httpx.get(f"{address}/gradio_api/call/attribute/{event}", headers=BEARER, timeout=600).text
        assert said.startswith("event: error"), told
        assert "upload" in said or "not an address or a path" in said, said


@needs_gradio
def test_headers_and_page_name_no_other_server(address: str) -> None:
    import httpx

    assert httpx.get(address).status_code == 401
    with httpx.Client(follow_redirects=True) as visitor:
        page = visitor.get(address, params={"token": SECRET})
        assert page.status_code == visitor.get(f"{address}/config").status_code == 200
    assert SECRET not in str(page.url)
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "connect-src 'self'" in policy
    loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:)?//", page.text)
    assert not [url for url in loaded if address not in url]


def test_auth_as_it_is_written() -> None:
    assert parse_auth(None) is None
    assert parse_auth("anna:a:b") == ("anna", "a:b")
    for text in ("anna", "anna:", ":x"):
        with pytest.raises(GudaError, match="USER:PASSWORD"):
            parse_auth(text)


@needs_gradio
def test_login(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    from fastapi.testclient import TestClient

    from guda.web.server import web_app

    service = Service(copy_run(tmp_path / "run").root)
    app = web_app(service, tmp_path, "127.0.0.1", 7860, ("anna", "secret"))
    client = TestClient(app, base_url="http://guda.example.org")  # a proxy that passes Host on
    assert client.get("/config").status_code == 401
    for path in ("/manifest.json", "/openapi.json", "/gradio_api/openapi.json", "/docs"):
        said = client.get(path)
        assert (said.status_code in (401, 404)) or said.text == "{}", path
    assert client.post("/login", data={"username": "anna", "password": "wrong"}).status_code == 400
    assert client.post("/login", data={"username": "anna", "password": "secret"}).status_code == 200
    assert client.get("/config").status_code == 200


@needs_gradio
def test_the_server_fetches_nothing_for_a_stranger(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gradio.routes
    import httpx

    asked: list[object] = []

    async def fetch(*args: object) -> None:
        asked.append(args)

    monkeypatch.setattr(gradio.routes, "secure_url_stream_response", fetch)
    for path in ("file=https://example.org/x", "file%3DHTTPS%3A//example.org/x", "file/http://example.org/x",
                 "proxy=https://example.org/x", "PROXY%3Dhttps://example.org/x"):  # fmt: skip
        assert httpx.get(f"{address}/gradio_api/{path}").status_code == 403, path
    assert not asked


@needs_gradio
def test_pages_of_other_servers_are_refused(address: str, tmp_path: Path) -> None:
    import httpx

    port = address.rpartition(":")[2]

    def upload(**headers: str) -> int:
        files = {"files": grey(tmp_path / "p.png").read_bytes()}
        return httpx.post(f"{address}/gradio_api/upload", files=files, headers=BEARER | headers).status_code

    assert upload() == upload(origin=address) == 200
    assert upload(host=f"localhost:{port}", origin=f"http://localhost:{port}") == 200
    for origin in ("https://example.org", "http://127.0.0.1:1", "null"):
        assert upload(origin=origin) == 403, origin
    assert upload(host=f"example.org:{port}", origin=f"http://example.org:{port}") == 403  # DNS rebinding
    assert httpx.get(address, headers={"host": f"example.org:{port}"}).status_code == 403


def test_rules_behind_the_choices() -> None:
    assert rule_of(FIRST, None, "") == "top1@0.95"
    assert rule_of(THREE, None, "") == "top3@0.9"
    assert rule_of(BUDGET, 500.0, "") == "budget=500"
    assert rule_of(OWN, None, " top2@0.99,budget=9 ") == "top2@0.99,budget=9"
    for bad in ((BUDGET, None, ""), (BUDGET, 0, ""), (OWN, None, ""), (OWN, None, "../x")):
        with pytest.raises(GudaError):
            rule_of(*bad)


def test_one_style_for_report_and_app() -> None:
    css = sheet()
    assert "prefers-color-scheme" not in css
    report = (Path(sys.modules["guda.scoring"].__path__[0]) / "bars.css").read_text()
    light, dark = re.findall(r"--blue: (#\w+);", report)
    assert re.search(rf"^:root {{.*--blue: {light};", css, re.DOTALL)
    assert re.search(rf"^\.dark {{[^}}]*--blue: {dark};", css, re.MULTILINE)
    assert css.count("{") == css.count("}")


def command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "guda", "serve", *args], capture_output=True, text=True, timeout=600,
        env={**os.environ, **env},
    )  # fmt: skip


def test_the_command_line_does_not_listen_for_others_without_a_password(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from guda.cli.main import app

    result = CliRunner().invoke(app, ["serve", str(tmp_path), "--host", "0.0.0.0"], env={"GUDA_AUTH": ""})
    assert isinstance(result.exception, GudaError)
    assert result.exception.code == "host-without-password"


@needs_gradio
def test_what_the_command_line_refuses(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(GudaError, match="cannot listen on"):
            free("127.0.0.1", port)
        run = copy_run(tmp_path / "run")
        said = command(str(run.root), "--port", str(port))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"guda: cannot listen on 127.0.0.1:{port}")
    assert said.stderr.count("\n") == 1
    (tmp_path / "gradio.py").write_text("raise ImportError('not here')")
    said = command(str(run.root), PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert 'pip install "guda[web]"' in said.stderr


def through(guard: Guard, path: str = "/", bodies: list[bytes | None] | None = None, method: str = "GET",
            query: bytes = b"", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:  # fmt: skip
    """(status, headers, body) of a request through the guard. `bodies`: pieces; None: nothing comes any more."""
    sent: list[Any] = []
    pieces = list(bodies or [b""])

    async def receive() -> Any:
        if not pieces or pieces[0] is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "path": path, "headers": named, "method": method, "query_string": query}
    asyncio.run(guard(scope | {"client": ("10.0.0.1", 1)}, receive, send))
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


async def everything(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body and answers 200 to anything."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("as Starlette does")
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def ask(path: str = "/", local: bool = True, **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    return through(Guard(everything, local), path, **headers)


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


def test_a_link_with_the_token_lets_in_once_and_the_cookie_from_then_on() -> None:
    token = make_token(None)
    guard = Guard(everything, True, Token(token, 7860))
    local = {"host": "localhost:7860"}
    assert through(guard, **local)[0] == through(guard, query=b"token=", **local)[0] == 401
    assert through(guard, query=f"token={token[:-1]}".encode(), **local)[0] == 401
    status, headers, _ = through(guard, query=f"result=upload-1&token={token}".encode(), **local)
    assert (status, headers[b"location"]) == (303, b"/?result=upload-1")
    cookie, _, flags = headers[b"set-cookie"].decode().partition(";")
    assert {"HttpOnly", "SameSite=Lax"} <= {f.strip() for f in flags.split(";")}
    assert through(guard, cookie=cookie, **local)[0] == 200
    assert through(guard, query=f"token={token}".encode(), cookie=cookie, **local)[0] == 303
    assert through(guard, cookie=f"other=1; {cookie}", **local)[0] == 200
    assert through(guard, cookie=cookie + "x", **local)[0] == 401
    assert through(Guard(everything, True, Token(token, 7861)), cookie=cookie, **local)[0] == 401  # of another port
    assert through(guard, authorization=f"Bearer {token}", **local)[0] == 200
    assert through(guard, authorization=f"Bearer {token}x", **local)[0] == 401
    assert through(guard, "/manifest.json", **local)[2] == b"{}"
    place = through(guard, "//example.org", query=f"token={token}".encode(), **local)[1][b"location"]
    assert place == b"/example.org"
    assert link("127.0.0.1", 7860, token) == f"http://127.0.0.1:7860/?token={token}"


def test_beyond_this_machine_a_password_is_required() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        check_exposure(host, None, False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "guda.example.org"):
        with pytest.raises(GudaError) as error:
            check_exposure(host, None, False)
        assert error.value.code == "host-without-password"
        check_exposure(host, ("anna", "secret"), False)
        check_exposure(host, None, True)
    with pytest.raises(GudaError) as error:
        make_token("short")
    assert error.value.code == "token-invalid"


def test_wrong_passwords_are_limited_and_a_right_one_is_not() -> None:
    now = [0.0]
    attempts = Attempts(most=2, within=60, clock=lambda: now[0])
    assert [attempts.begin("a") for _ in range(3)] == [True, True, False]
    assert attempts.begin("b")
    now[0] = 61.0
    assert attempts.begin("a")
    attempts.succeeded("a")
    assert [attempts.begin("a") for _ in range(3)] == [True, True, False]

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200 if body == b"right" else 400, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(gradio)

    def login(body: bytes) -> int:
        return through(guard, "/login", [body], "POST")[0]

    assert [login(b"right") for _ in range(9)] == [200] * 9
    assert [login(b"wrong") for _ in range(6)] == [400] * 5 + [429]
    assert login(b"right") == 429


def test_a_body_is_limited_in_bytes_and_time() -> None:
    json = {"path": "/gradio_api/queue/join", "method": "POST"}
    assert through(Guard(everything), bodies=[b"x" * BODY], **json)[0] == 200
    assert through(Guard(everything), bodies=[b""], content_length=str(BODY + 1), **json)[0] == 413
    assert through(Guard(everything), bodies=[b"x" * BODY, b"x", b""], **json)[0] == 413  # sent without its length
    for limits in ({"idle": 0.01}, {"whole": 0.01}):
        status, headers, _ = through(Guard(everything, **limits), bodies=[b"x", None], **json)  # type: ignore[arg-type]
        assert (status, headers[b"connection"]) == (408, b"close")


def test_uploads_never_take_more_than_their_limit(tmp_path: Path) -> None:
    most = 10 * BLOCK
    folder, numbers = UploadFolder(tmp_path, most), count()

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        """Keeps what it receives, as Gradio does: a temporary file first, then a folder named after the content."""
        number = next(numbers)
        tmp = tmp_path / f"tmp{number}"
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            with tmp.open("ab") as f:
                f.write(message["body"])
            more = message["more_body"]
        (tmp_path / f"{number}").mkdir()
        os.utime(tmp, ns=(number, number))
        tmp.rename(tmp_path / f"{number}" / "a.png")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(gradio, uploads=folder, idle=0.01)

    def upload(*bodies: bytes | None, length: int = 3 * BLOCK) -> int:
        return through(guard, "/gradio_api/upload", list(bodies), "POST", content_length=str(length))[0]

    names: list[Path] = []
    for _ in range(5):
        assert upload(b"x" * 3 * BLOCK) == 200
        assert folder.used <= most
        names += [p for p in tmp_path.rglob("a.png") if p not in names]
    assert [p.exists() for p in names] == [False, False, True, True, True]
    with holding(names[2:]):  # a batch that waits
        assert upload(b"x" * 3 * BLOCK) == 413
    assert upload(b"x" * 3 * BLOCK) == 200
    assert upload(b"", length=most + 1) == 413
    assert through(guard, "/gradio_api/upload", [b"x"], "POST")[0] == 411
    before = folder.used
    assert upload(b"x" * BLOCK, None) == 408  # half-open
    assert folder.used <= before
    assert not list(tmp_path.glob("tmp*"))
    guard._receiving = UPLOADS
    assert upload(b"x") == 503


def test_the_upload_folder_is_removed_also_of_a_server_that_was_killed(tmp_path: Path) -> None:
    with upload_folder(1, tmp_path) as ours:
        (ours.path / "x").write_text("x")
        with upload_folder(1, tmp_path) as theirs:
            assert ours.path.is_dir()
            assert theirs.path != ours.path
    assert list(tmp_path.iterdir()) == []
    killed = tmp_path / "guda-web-killed"
    killed.mkdir()
    (killed / ".lock").touch()
    with upload_folder(1, tmp_path):
        assert not killed.exists()
