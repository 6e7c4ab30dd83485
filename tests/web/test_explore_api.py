"""The REST API of the explorer: answers and messages of the command line, within limits.

It needs the extra `web`.
"""

import ast
import asyncio
import json
import multiprocessing
import re
import shlex
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.client import HTTPResponse
from urllib.parse import quote, urlencode

import pytest

from shardwise import Model, estimate, search
from shardwise.cli import run as run_command
from shardwise.config.plain import as_json
from shardwise.launchers.registry import LAUNCHERS

httpx = pytest.importorskip("httpx")
pytest.importorskip("nicegui")

from served import serving  # noqa: E402 - an extra
from shardwise.web import connections, guard  # noqa: E402
from shardwise.web.guard import MOST_BYTES, Hosts  # noqa: E402
from shardwise.web.questions import ExportQuestion, answer_export  # noqa: E402
from shardwise.web.serve import SETTINGS, Server  # noqa: E402
from shardwise.web.state import Named, State  # noqa: E402
from shardwise.web.workers import Jobs  # noqa: E402
from written import record_of  # noqa: E402

RUN = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
QUESTION = {"model": "llama3-70b", "system": "h100-sxm", "strategy": RUN}
JSON = {"content-type": "application/json"}
SPACE = {"gpus": 16, "gbs": 64, "pp": 1}


@pytest.fixture(scope="module")
def server():
    """A server without its port; its worker is a process, started by the first question."""
    one = Server(processes=1, page=False)
    yield one
    one.pool.close()


def ask(server, test):
    """Run a function with a client of a server."""

    async def runs():
        transport = httpx.ASGITransport(app=server.app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await test(http)
        finally:
            server.jobs.close()

    return asyncio.run(runs())


async def ended(http, name):
    """A search when it has ended."""
    for _ in range(2400):
        job = (await http.get(f"/api/v1/search/{name}")).json()
        if job["state"] not in ("waiting", "running"):
            return job
        await asyncio.sleep(0.05)
    raise AssertionError(job)


def messages(answer):
    """Messages of an answer that refuses."""
    return [one["message"] for one in answer.json()["errors"]]


def printed(capsys, *words):
    """What the command line prints on stderr, without its prefix."""
    run_command(words)
    return [line.removeprefix("error: ") for line in capsys.readouterr().err.splitlines()]


def test_an_estimate_is_that_of_the_command_line(server):
    """The record of `estimate --json`, with models as data too."""

    async def asked(http):
        data = QUESTION | {"model": Model.load("llama3-70b").to_dict()}
        return [await http.post("/api/v1/estimate", json=one) for one in (QUESTION, data)]

    by_name, by_data = ask(server, asked)
    expected = json.loads(json.dumps(estimate("llama3-70b", "h100-sxm", RUN).to_dict()))
    assert by_name.status_code == 200
    assert record_of(by_name.text) == expected
    assert by_data.json()["step_time_s"] == expected["step_time_s"]


def test_a_link_opens_a_saved_result(server):
    """Its first plan, with all to compare; or one plan, of an estimate the only one."""
    found = search("llama3-8b", "h100-sxm", gpus=16, gbs=64, pp=1, top=3)
    saved = json.loads(as_json(found.to_dict()))

    async def answered(http):
        paths = ["link", "link?plan=2", "link?plan=4", "link?plan=x"]
        answers = [await http.post(f"/api/v1/{path}", json=saved) for path in paths]
        one = await http.post("/api/v1/estimate", json=QUESTION)
        sent = (one.json(), {"a": 1})
        return answers + [await http.post("/api/v1/link", json=data) for data in sent]

    *answers, alone, other = ask(server, answered)
    states = [
        State.of_query(record_of(one.text)["link"].removeprefix("/?"))
        for one in (*answers[:2], alone)
    ]
    times = [found.rows[0].step_time_s, found.rows[1].step_time_s]
    times.append(estimate("llama3-70b", "h100-sxm", RUN).step_time_s)
    for state, time_s in zip(states, times, strict=True):
        question = state.question()
        again = estimate(question["model"], question["system"], question["strategy"])
        assert again.step_time_s == time_s
    assert [len(state.pinned) for state in states] == [3, 0, 0]
    assert State.of_query(states[0].pinned[1]).strategy == states[1].strategy
    assert "must be a plan of the search, from 1 to 3" in messages(answers[2])[0]
    assert messages(answers[3]) == ["plan: 'x': must be a whole number of at least 1"]
    assert messages(other) == ["result: is not the result of estimate --json or search --json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"strategy": RUN | {"tp": 3}}, ["--gpus", "64", "--tp", "3", "--pp", "2", "--gbs", "128"]),
        ({"strategy": RUN | {"pp": 7}}, ["--gpus", "64", "--tp", "8", "--pp", "7", "--gbs", "128"]),
        ({"system": "h100-sxn"}, ["--gpus", "64"]),
    ],
)
def test_messages_are_those_of_the_command_line(server, change, words, capsys):
    """422 with one message for each fault."""
    answer = ask(server, lambda http: http.post("/api/v1/estimate", json=QUESTION | change))
    system = change.get("system", "h100-sxm")
    shown = printed(capsys, "estimate", "llama3-70b", system, *words)
    assert answer.status_code == 422
    for ours, theirs in zip(messages(answer), shown, strict=True):
        ending = "; did you mean" if "did you mean" in ours else ": must be"
        assert ours.split(": ", 1)[1].split(ending)[0].replace("strategy: ", "") in theirs


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"modle": "x"}, 422, "request: modle: unknown key; did you mean 'model'?"),
        (QUESTION | {"operations": "perhaps"}, 422, "request: operations: 'perhaps': must be"),
        ([QUESTION], 422, "request: must be JSON: a mapping of fields to values"),
        (QUESTION | {"model": "/etc/passwd"}, 422, "/etc/passwd: files cannot be named here"),
        (QUESTION | {"model": "../../x.yaml"}, 422, "../../x.yaml: files cannot be named here"),
        (QUESTION | {"strategy": RUN | {"stack": "/etc/hosts"}}, 422, "files cannot be named here"),
        (QUESTION | {"model": {"base": "/etc/passwd"}}, 422, "files cannot be named here"),
        (QUESTION | {"model": "example/Llama-3.1-8B"}, 422, "files cannot be named here"),
        (QUESTION | {"model": "<script>alert(1)"}, 422, "model: '<script>alert(1)': no such model"),
        (b"[" * 100_000, 422, "request: is nested too deeply; at most 100 levels"),
        (b'{"a": 1' + b"0" * 400 + b"}", 422, "request: a number has more than 308 digits"),
        (b'{"model": "x", "model": "y"}', 422, "request: key 'model' is set twice"),
        (b"\xff\xfe", 422, "request: is not UTF-8 text"),
        (b" " * (MOST_BYTES + 1), 413, "request: is larger than 2 MiB"),
    ],
)
def test_bad_requests_are_refused(server, body, status, words):
    """In one line each, and the server answers the next question."""

    async def asked(http):
        how = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await http.post("/api/v1/estimate", **how, headers=JSON)
        return answer, await http.get("/api/v1/models")

    answer, after = ask(server, asked)
    assert answer.status_code == status
    assert any(words in message for message in messages(answer)), messages(answer)
    assert all("\n" not in message for message in messages(answer))
    assert "llama3-8b" in after.json()


def test_a_large_upload_is_refused_on_the_way(server):
    """Of any address: the server reads no more than its limit of 50 MB."""
    sent = 0

    async def body():
        nonlocal sent
        for _ in range(800):
            sent += 2**16
            yield b" " * 2**16

    async def asked(http):
        return await http.post("/_nicegui/client/x/upload/1", content=body())

    assert ask(server, asked).status_code == 413
    assert sent < 2 * MOST_BYTES


def test_a_slow_request_is_refused(server, monkeypatch):
    """A client that sends a body without end, byte by byte, does not keep a place."""
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.2)

    async def body():
        while True:
            await asyncio.sleep(0.05)
            yield b" "

    async def asked(http):
        slow = await http.post("/api/v1/estimate", content=body(), headers=JSON)
        return slow, await http.get("/api/v1/models")

    slow, after = ask(server, asked)
    assert slow.status_code == 408
    assert messages(slow) == ["request: took more than 0.2 s to arrive"]
    assert after.status_code == 200


@pytest.mark.parametrize("gpus", ["1..100000000", list(range(1, 20_000))])
def test_huge_searches_end(server, gpus):
    """With an answer, or with what is too large; the server lives on."""

    async def asked(http):
        space = {"gpus": gpus, "gbs": 8}
        question = {"model": "llama3-8b", "system": "h100-sxm", "space": space}
        started = await http.post("/api/v1/search", json=question)
        return await ended(http, started.json()["id"]), await http.get("/api/v1/models")

    job, after = ask(server, asked)
    assert job["state"] == "done" or any("gpus" in error for error in job["errors"])
    assert after.status_code == 200


def test_a_search_is_a_job(server):
    """It starts at once, reports its progress, and ends with the result of `search`."""

    async def asked(http):
        question = {"model": "llama3-8b", "system": "h100-sxm", "space": SPACE, "top": 3}
        started = await http.post("/api/v1/search", json=question)
        return started, await ended(http, started.json()["id"])

    started, job = ask(server, asked)
    assert started.status_code == 202
    expected = search("llama3-8b", "h100-sxm", SPACE, top=3)
    assert job["state"] == "done"
    assert len(job["result"]["best"]) == 3
    assert job["result"]["best"][0]["step_time_s"] == expected.best[0].step_time_s


def test_a_search_can_be_stopped(server):
    """Its process ends; bad questions fail with messages; unknown searches are refused."""

    async def asked(http):
        many = {"gpus": "8..512:8", "gbs": "64..4096:64", "scope": "full"}
        question = {"model": "llama3-8b", "system": "h100-sxm", "space": many}
        name = (await http.post("/api/v1/search", json=question)).json()["id"]
        await asyncio.sleep(0.3)
        stopped = (await http.delete(f"/api/v1/search/{name}")).json()
        for _ in range(200):
            if not [one for one in multiprocessing.active_children() if one.daemon]:
                break
            await asyncio.sleep(0.05)
        alive = [one for one in multiprocessing.active_children() if one.daemon]
        bad = (await http.post("/api/v1/search", json=question | {"space": {"gpus": 0}})).json()
        job = await ended(http, bad["id"])
        return stopped, alive, job, await http.get("/api/v1/search/nonsense")

    stopped, alive, job, unknown = ask(server, asked)
    assert stopped["state"] == "cancelled"
    assert alive == []
    assert job["state"] == "failed"
    assert any("gpus" in error for error in job["errors"])
    assert unknown.status_code == 422
    assert messages(unknown) == ["search: id: 'nonsense': no such search, or it was forgotten"]


def slow(question, progress):
    """Work that does not end."""
    del question, progress
    time.sleep(60)


def test_searches_that_wait_and_run_are_bounded():
    """A search of too many seconds is stopped; too many searches are refused."""

    async def asked():
        jobs = Jobs(running=1, most=2, most_seconds=0.5)
        one, other = jobs.start(slow, None), jobs.start(slow, None)
        with pytest.raises(Exception, match="too many searches are waiting"):
            jobs.start(slow, None)
        await one.task
        jobs.close()
        await asyncio.sleep(0)
        return one, other

    one, other = asyncio.run(asked())
    assert one.state == "failed"
    assert "took more than 0.5 s and was stopped" in str(one.errors[0])
    assert other.state == "cancelled"


def test_the_catalog_and_openapi(server):
    """Names, entries as the command line prints them, and the types of questions."""

    async def asked(http):
        paths = ("models", "models/llama3-8b", "systems/h100-sxm", "stacks/torchtitan-2025")
        return [(await http.get(f"/api/v1/{path}")).json() for path in (*paths, "openapi.json")]

    models, model, system, stack, openapi = ask(server, asked)
    assert "llama3-8b" in models
    assert model["parameters"] == 8_030_261_248
    assert system["name"] == "h100-sxm"
    assert stack["release"].startswith("torchtitan")
    schemas = openapi["components"]["schemas"]
    fields = schemas["EstimateQuestion"]["properties"]["strategy"]["properties"]
    assert {"gpus", "tp", "recompute", "dispatcher"} <= set(fields)
    assert openapi["paths"]["/api/v1/estimate"]["post"]["responses"]["422"]


@pytest.mark.parametrize(
    "token", ["a long secret text", "ein längeres Wort", "bytes\udcff of no text"]
)
def test_a_token_is_needed_where_one_is_set(token):
    """In the header, the address, or the cookie that the first answer sets; of any letters."""
    sent = token.encode("utf-8", "surrogateescape")

    async def asked(http):
        without = await http.get("/api/v1/models")
        headers = [{"authorization": value} for value in (b"Bearer \xff", b"Basic " + sent)]
        wrong = [await http.get("/api/v1/models", headers=one) for one in headers]
        wrong.append(await http.get("/api/v1/models?token=%ff"))
        address = await http.get("/api/v1/models?token=" + quote(sent))
        cookie = await http.get("/api/v1/models")
        http.cookies.clear()
        headers = [{"authorization": scheme + sent} for scheme in (b"Bearer ", b"bearer ")]
        right = [await http.get("/api/v1/models", headers=one) for one in headers]
        return [without, *wrong], address, [address, cookie, *right]

    refused, address, served = ask(Server(processes=1, page=False, token=token), asked)
    assert {one.status_code for one in refused} == {401}
    assert {one.status_code for one in served} == {200}
    assert "HttpOnly" in address.headers["set-cookie"]


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "status"),
    [
        ({}, "localhost:8765", None, 200),
        ({}, "127.0.0.1", None, 200),
        ({}, "[::1]:8765", None, 200),
        ({}, "evil.example", None, 421),
        ({}, "127.0.0.1.evil.example", None, 421),
        ({}, "localhost@evil.example", None, 421),
        ({}, "192.0.2.1", None, 421),
        ({}, "", None, 421),
        ({"bound": "192.0.2.1"}, "192.0.2.1:8765", None, 200),
        ({"bound": "0.0.0.0"}, "192.0.2.1", None, 200),  # noqa: S104 - an address
        ({"bound": "::"}, "[2001:db8::1]:8765", None, 200),
        ({"bound": "0.0.0.0"}, "evil.example", None, 421),  # noqa: S104 - an address
        ({"allowed": ("plans.example",)}, "Plans.example:8765", None, 200),
        ({}, "localhost:8765", "http://localhost:8765", 200),
        ({}, "localhost", "https://localhost", 200),
        ({}, "localhost:8765", "http://localhost:9000", 403),
        ({}, "localhost:8765", "http://127.0.0.1:8765", 403),
        ({}, "localhost:8765", "null", 403),
        ({}, "localhost:8765", "file://localhost:8765", 403),
        ({}, "evil.example", "http://evil.example", 421),
        ({"allowed": ("plans.example",)}, "localhost:8765", "https://plans.example", 200),
        ({"allowed": ("plans.example",)}, "localhost:8765", "https://plans.example:9000", 403),
        ({"allowed": ("plans.example:9000",)}, "localhost", "https://plans.example:9000", 200),
    ],
)
def test_requests_of_other_sites_are_refused(hosts, host, origin, status):
    """Those for a name that is not the server's, and those that a page of another site sends."""
    one = Server(processes=1, page=False, hosts=Hosts(**hosts))
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    answer = ask(one, lambda http: http.get("/api/v1/models", headers=headers))
    one.pool.close()
    assert answer.status_code == status
    assert status == 200 or messages(answer)
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_read(server, kind):
    """A page of another site can send other types without a question to the server."""
    headers = {} if kind is None else {"content-type": kind}
    text = json.dumps(QUESTION).encode()
    answer = ask(server, lambda http: http.post("/api/v1/estimate", content=text, headers=headers))
    assert answer.status_code == 415
    assert "must be application/json" in messages(answer)[0]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("OPTIONS", "/api/v1/estimate", 405, "POST"),
        ("GET", "/api/v1/estimate", 405, "POST"),
        ("PUT", "/api/v1/search/x", 405, "DELETE, GET"),
        ("BREW", "/api/v1/models", 405, "GET"),
        ("GET", "/api/v1/estimates", 404, None),
        ("OPTIONS", "/api/v2/estimate", 404, None),
    ],
)
def test_paths_and_methods_that_there_are_not_are_refused(server, method, path, status, allowed):
    """As JSON, with the methods that a path has."""
    answer = ask(server, lambda http: http.request(method, path))
    assert answer.status_code == status
    assert answer.headers.get("allow") == allowed
    assert messages(answer)


NAMES = [
    "../../x",
    ".hidden",
    'a"""; print(1); """',
    "'; print(1); '",
    "a $(print 1) `b`",
    "\\",
    "//",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_model_is_only_a_name(name):
    """It leads exported files to no folder and no shell, and nothing of it is run."""
    model = Model.load("llama3-8b").to_dict() | {"name": name}
    for launcher in LAUNCHERS:
        for release in launcher.releases:
            question = {"launcher": launcher.name, "release": release, "model": model}
            plan = {"system": "h100-sxm", "strategy": {"gpus": 8, "gbs": 8, "zero": 3}}
            asked = ExportQuestion.validated({**question, **plan, "nearest": True}, source="")
            for file, text in answer_export(asked)["files"].items():
                assert re.fullmatch(r"\w[\w.+-]*", file)
                if file.endswith(".py"):
                    calls = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call)]
                    assert "print" not in [getattr(one.func, "id", "") for one in calls]
    state = State.of_query(urlencode({"model": name, "system": "--plot=x", "figure": "a=1\nb"}))
    words = shlex.split(state.command(), comments=True)
    assert words[:3] == ["shardwise", "estimate", name]
    assert words[3] == "./--plot=x"
    assert replace(state, model=Named(name=name, data={})).command().count("/") == 1


@pytest.fixture
def connected(monkeypatch):
    """Opens connections from an address of this machine to a server that lets 8 wait, 5 of one."""
    monkeypatch.setattr(connections, "MOST_WAITING", 8)
    monkeypatch.setattr(connections, "MOST_WAITING_OF_ADDRESS", 5)
    with serving(processes=1, page=False, token=TOKEN) as (_, port), ExitStack() as stack:

        def connect(text, source="127.0.0.1"):
            one = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
            stack.enter_context(one)
            one.sendall(text)
            return one

        yield connect


TOKEN = "a long secret text"  # noqa: S105 - of the tests
REQUEST = f"GET /api/v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"


def status(one):
    """Status of the next answer; None where the connection was closed."""
    answer = HTTPResponse(one)
    try:
        answer.begin()
        answer.read()
    except ConnectionError:
        return None
    return answer.status


def test_connections_that_send_no_request_take_no_places(connected):
    """However many wait: those that waited longest are closed, of one address first."""
    early = connected(REQUEST.encode() + b"\r\n")
    assert status(early) == 200
    early.sendall(REQUEST.encode())
    near = [connected(b"GET / HTTP/1.1\r\nX: ", "127.0.0.2") for _ in range(9)]
    assert [status(one) for one in near[:4]] == [None] * 4
    early.sendall(b"\r\n")
    assert status(early) == 200
    far = [connected(b"GET /", f"127.0.1.{number}") for number in range(1, 9)]
    assert [status(one) for one in near] == [None] * 9
    late = connected(REQUEST.encode() + b"\r\n", "127.0.0.3")
    assert status(late) == 200
    assert status(far[0]) is None
    far[-1].sendall(REQUEST.encode()[5:] + b"\r\n")
    assert status(far[-1]) == 200


def test_a_request_that_never_ends_is_closed(connected, monkeypatch):
    """The time for the headers of a request counts from the start of the connection."""
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.2)
    slow = connected(b"GET / HTTP/1.1\r\nX: ")
    with suppress(ConnectionError):
        while True:
            slow.sendall(b"x")
            time.sleep(0.05)


def test_most_places_are_of_requests():
    """Less than half of what uvicorn serves at a time may wait."""
    assert SETTINGS["limit_concurrency"] > 2 * connections.MOST_WAITING


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "host: '0.0.0.0': needs --token"),  # noqa: S104 - refused
        (["--host", "999.1.1.1", "--token", "x" * 12], "--host: '999.1.1.1': is no address"),
        (["--host", "8.8.8.8", "--token", "x" * 12], "--host: '8.8.8.8': is no address"),
        (["--token", "short"], "token: '*****': must have at least 12 characters"),
        (["--allow-host", "http://x/"], "allow-host: 'http://x/': must be a name"),
        (["--token-file", "/none"], "/none: no such file"),
        (["--token-file", "/none", "--token", "a long secret text"], "--token sets the token too"),
        (["/none.json"], "/none.json: no such file"),
        (["--port", "99999"], "port: '99999': must be from 1 to 65535"),
        (["--port", "http"], "port: 'http': must be a whole number"),
    ],
)
def test_options_of_the_command_are_checked(words, message, capsys):
    """One line, exit code 2, and no server."""
    assert run_command(["explore", "--no-open", *words]) == 2
    assert message in capsys.readouterr().err
