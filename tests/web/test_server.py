"""The app as a server, without a browser: its HTTP API, its manners, and what the command line refuses.

The guard, without the app: who is let in, and what is never passed on.
"""

from __future__ import annotations

import asyncio
import base64
import html
import io
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinyrun import SET, copy_run, finished_root
from uploads import grey, png_header

from guda.errors import GudaError
from guda.run.run import Run
from guda.scoring.reading import READINGS, reading_of
from guda.web.access import Attempts, Login, Token, check_exposure, link, make_token, parse_auth
from guda.web.guard import BODY, FORM, UPLOADS, Guard
from guda.web.question import prompts_of, rule_of
from guda.web.server import free
from guda.web.service import Service
from guda.web.upload_folder import UploadFolder, upload_folder
from waiting import wait_for

SECRET = "token-of-these-tests"
BEARER = {"authorization": f"Bearer {SECRET}"}

DOCS = Path(__file__).parents[2] / "docs" / "web.md"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


needs_web = pytest.mark.e2e  # `make test-e2e` installs FastAPI


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("fastapi")
    import uvicorn

    from guda.web.server import web_app

    root = tmp_path_factory.mktemp("served")
    (root / "uploads").mkdir()
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


@needs_web
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


def post(address: str, content: bytes | None, **fields: str) -> Any:
    import httpx

    files = None if content is None else {"picture": ("p.png", content)}
    return httpx.post(f"{address}/api/attribute", files=files, data=fields, headers=BEARER, timeout=600)


@needs_web
def test_the_api_refuses_with_the_same_line(address: str, tmp_path: Path) -> None:
    import httpx

    said = post(address, png_header(10_000, 10_000))
    assert (said.status_code, said.json()["code"]) == (400, "upload-pixels-too-many")
    assert "100 megapixels" in said.json()["message"]
    assert post(address, grey(tmp_path / "p.png").read_bytes(), prompt="a").json()["code"] == "prompts-unexpected"
    assert post(address, None, picture="x").json()["code"] == "image-not-given"
    assert post(address, b"", rule="top1@0.95").json()["code"] == "upload-empty"
    said = httpx.get(f"{address}/api/result", params={"result": "../run"}, headers=BEARER)
    assert (said.status_code, said.json()["code"]) == (404, "result-unknown")
    note = post(address, grey(tmp_path / "q.png", (16, 16)).read_bytes()).json()["note"]
    assert "16 x 16" in note


@needs_web
def test_a_path_or_an_address_is_no_upload(address: str, tmp_path: Path) -> None:
    """Or anybody could read pictures of this machine, and make it fetch what they like."""
    path = grey(tmp_path / "private.png")
    for told in (str(path), f"file://{path}", f"{address}/app.js", "http://example.org/picture.png"):
        assert post(address, None, picture=told).json()["code"] == "image-not-given", told


@needs_web
def test_no_address_makes_a_path(address: str) -> None:
    import httpx

    for path in ("/picture?set=../data&id=0", "/picture?set=samples-s0-n12-t4&id=../../run.json", "/stored?set=..",
                 "/result?result=..%2F..", "/watch?result=..", "/events?result=x",
                 "/events?result=samples-s0-n12-t4", "/watch?result=samples-s0-n12-t4",
                 "/compare?left=result%3Dx&right=",
                 "/batch?list=../x"):  # fmt: skip
        assert httpx.get(f"{address}{path}", headers=BEARER).status_code == 404, path
    for path in ("/static/../run.json", "/..%2frun.json", "/openapi.json", "/docs"):
        assert httpx.get(f"{address}{path}", headers=BEARER).status_code == 404, path


@needs_web
def test_a_refused_upload_leaves_nothing(address: str, tmp_path: Path) -> None:
    import httpx

    uploads = next(p for p in tmp_path.parent.glob("served*/uploads"))
    before = httpx.get(f"{address}/api/results", headers=BEARER).json()
    for data in (b"x" * 300_000, png_header(20_000, 20_000), b"\x89PNG\r\n\x1a\n"):
        assert post(address, data).status_code == 400
        assert list(uploads.iterdir()) == []
    assert post(address, b"x" * 600_000).status_code == 413  # twice its length is more than the megabyte of these tests
    assert httpx.get(f"{address}/api/results", headers=BEARER).json() == before


@needs_web
def test_the_page_asks_what_the_scores_answer(address: str) -> None:
    import httpx

    scoring = Run.open(finished_root()).recipe.scoring
    assert reading_of(scoring) is READINGS["elbo"]
    assert reading_of(scoring.model_copy(update={"estimand": "path", "excess": True})) is READINGS["path-excess"]
    page = httpx.get(address, headers=BEARER | {"accept-language": "en"})
    assert READINGS["elbo"].question in html.unescape(page.text)


@needs_web
def test_headers_and_page_name_no_other_server(address: str) -> None:
    import httpx

    assert httpx.get(address).status_code == 401
    with httpx.Client(follow_redirects=True) as visitor:
        page = visitor.get(address, params={"token": SECRET})
        assert page.status_code == visitor.get(f"{address}/app.js").status_code == 200
    assert SECRET not in str(page.url)
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:)?//", page.text)
    assert not loaded
    assert "<script>" not in page.text


@needs_web
def test_the_language_is_the_browsers(address: str) -> None:
    import httpx

    titles = []
    for said in ("en", "de-DE,de;q=0.9,en;q=0.8", "fr", "ja, fr;q=0.2"):
        page = httpx.get(address, headers=BEARER | {"accept-language": said})
        titles.append((page.text.partition("<h1>")[2].partition("</h1>")[0], page.text.partition('lang="')[2][:2]))
    assert [lang for _, lang in titles] == ["en", "de", "fr", "fr"]
    assert len({title for title, _ in titles}) == 3
    api = httpx.get(f"{address}/api/results", headers=BEARER | {"accept-language": "de"})
    assert api.json() == httpx.get(f"{address}/api/results", headers=BEARER).json()


def test_auth_as_it_is_written() -> None:
    assert parse_auth(None) is None
    assert parse_auth("anna:a:b") == ("anna", "a:b")
    for text in ("anna", "anna:", ":x"):
        with pytest.raises(GudaError, match="USER:PASSWORD"):
            parse_auth(text)


@needs_web
def test_login(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from guda.web.server import web_app

    service = Service(copy_run(tmp_path / "run").root)
    app = web_app(service, tmp_path, "127.0.0.1", 7860, ("anna", "secret"))
    client = TestClient(app, base_url="http://guda.example.org", follow_redirects=False)  # a proxy that passes Host on
    for path in ("/", "/app.js", "/api/results", "/stored", "/openapi.json", "/docs", "/manifest.json"):
        assert client.get(path).status_code == 401, path
    sent = client.get("/stored", headers={"accept": "text/html"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/login")
    assert "guda: tiny" not in client.get("/login").text  # the run's name is not for strangers
    assert client.get("/", params={"token": "x"}).status_code == 401
    assert client.post("/login", data={"username": "anna", "password": "wrong"}).status_code == 401
    assert client.get("/api/results", auth=("anna", "wrong")).status_code == 401
    assert client.get("/api/results", auth=("anna", "secret")).status_code == 200
    assert client.get("/api/results").status_code == 401
    assert client.post("/login", data={"username": "anna", "password": "secret"}).status_code == 303
    assert client.get("/").status_code == 200


@needs_web
def test_pages_of_other_servers_are_refused(address: str, tmp_path: Path) -> None:
    import httpx

    port = address.rpartition(":")[2]

    def upload(**headers: str) -> int:
        files = {"picture": grey(tmp_path / "p.png").read_bytes()}
        return httpx.post(f"{address}/ask", files=files, headers=BEARER | headers).status_code

    assert upload() == upload(origin=address) == 303
    assert upload(host=f"localhost:{port}", origin=f"http://localhost:{port}") == 303
    for origin in ("https://example.org", "http://127.0.0.1:1", "null"):
        assert upload(origin=origin) == 403, origin
    assert upload(host=f"example.org:{port}", origin=f"http://example.org:{port}") == 403  # DNS rebinding
    assert httpx.get(address, headers={"host": f"example.org:{port}"}).status_code == 403


def test_rules_behind_the_choices() -> None:
    assert rule_of("first", "", "") == "top1@0.95"
    assert rule_of("three", "", "") == "top3@0.9"
    assert rule_of("budget", "500", "") == "budget=500"
    assert rule_of("own", "", " top2@0.99,budget=9 ") == "top2@0.99,budget=9"
    for bad in (("budget", "", ""), ("budget", "0", ""), ("budget", "5.5", ""), ("own", "", ""), ("own", "", "../x")):
        with pytest.raises(GudaError):
            rule_of(*bad)


def test_one_prompt_each_or_one_for_all() -> None:
    assert prompts_of("", 2, None) == ["", ""]
    assert prompts_of("a cat\n\na dog", 2, "prompt") == ["a cat", "a dog"]
    assert prompts_of("a cat", 3, "prompt") == ["a cat"] * 3
    with pytest.raises(GudaError) as error:
        prompts_of("a\nb", 3, "prompt")
    assert error.value.code == "prompts-count-mismatch"


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


@needs_web
def test_what_the_command_line_refuses(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
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
    (tmp_path / "fastapi.py").write_text("raise ImportError('not here')")
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

    guard = Guard(everything, token=Token(make_token(None), 7860), login=Login("anna", "right"))

    def login(password: str) -> int:
        return through(guard, "/login", [f"username=anna&password={password}".encode()], "POST")[0]

    assert [login("right") for _ in range(9)] == [303] * 9
    assert [login("wrong") for _ in range(6)] == [401] * 5 + [429]
    assert login("right") == 429
    basic = {"authorization": "Basic " + base64.b64encode(b"anna:right").decode()}
    assert through(guard, **basic)[0] == 429  # the same count for programs
    assert through(Guard(everything, token=guard.token, login=guard.login), **basic)[0] == 200
    assert through(guard, "/login", [b"x" * (FORM + 1)], "POST")[0] == 413


def test_a_body_is_limited_in_bytes_and_time() -> None:
    json = {"path": "/evidence", "method": "POST"}
    assert through(Guard(everything), bodies=[b"x" * BODY], **json)[0] == 200
    assert through(Guard(everything), bodies=[b""], content_length=str(BODY + 1), **json)[0] == 413
    assert through(Guard(everything), bodies=[b"x" * BODY, b"x", b""], **json)[0] == 413  # sent without its length
    for limits in ({"idle": 0.01}, {"whole": 0.01}):
        status, headers, _ = through(Guard(everything, **limits), bodies=[b"x", None], **json)  # type: ignore[arg-type]
        assert (status, headers[b"connection"]) == (408, b"close")


@pytest.mark.parametrize("path", ["/api/attribute", "/ask", "/evidence"])
def test_a_visitor_who_leaves_in_the_middle_of_an_upload_is_no_error(path: str, tmp_path: Path) -> None:
    folder, sent = UploadFolder(tmp_path, 100), []
    messages = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"content-length", b"40")], "method": "POST"}
    asyncio.run(
        Guard(everything, uploads=folder)(scope | {"query_string": b"", "client": ("10.0.0.1", 1)}, receive, send)
    )
    assert not sent
    assert folder.reserve("another", 50)  # its room is free again


def test_uploads_never_take_more_than_their_limit(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path, 100)
    guard = Guard(everything, uploads=folder, idle=0.01)

    def upload(*bodies: bytes | None, length: int = 40, path: str = "/ask") -> int:
        return through(guard, path, list(bodies), "POST", content_length=str(length))[0]

    for path in ("/ask", "/batch", "/api/attribute"):
        assert upload(b"x" * 40, path=path) == 200
    assert upload(b"x" * 41) == 413  # more than it said
    assert upload(b"", length=51) == 413  # twice its length: as it arrives, and as a file
    assert through(guard, "/ask", [b"x"], "POST")[0] == 411
    assert upload(b"x", None) == 408  # half-open
    assert folder.reserve("another", 30)
    assert upload(b"x" * 40) == 413
    folder.release("another")
    assert upload(b"x" * 40) == 200
    guard._receiving = UPLOADS
    assert upload(b"x") == 503


def test_an_upload_is_a_file_only_while_it_is_read(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path, 1)
    for name, shown in (("a.png", "a.png"), ("../../etc/x y.png", "x y.png"), ("..", "picture"), ("\x00<b>", "_b_"),
                        ("x" * 300, "x" * 80), (".hidden", "hidden")):  # fmt: skip
        with folder.file(name, io.BytesIO(b"content")) as path:
            assert path.name == shown
            assert path.read_bytes() == b"content"
            assert path.resolve().is_relative_to(tmp_path.resolve())
        assert list(tmp_path.iterdir()) == []


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
