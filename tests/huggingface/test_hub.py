"""Models by their owner/name on the Hugging Face hub: fetched once, and refused with the reason."""

import json
import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shardwise import InputError, Model, System, UnknownNameError
from shardwise.huggingface import hub

CONFIG = json.loads((Path(__file__).parents[1] / "data/huggingface/qwen2.5-7b.json").read_text())
ANSWERS = {
    "/example/Qwen2.5-7B": (200, json.dumps(CONFIG).encode()),
    "/some/zamba": (200, b'{"architectures": ["ZambaForCausalLM"]}'),
    "/some/page": (200, b"<html></html>"),
    "/some/list": (200, b"[]"),
    "/some/large": (200, b" " * (2**20 + 1)),
    "/some/gated": (401, b""),
    "/some/closed": (403, b""),
    "/some/broken": (500, b""),
}
GATED = "the hub has no such model or keeps it behind a gate"
NOWHERE = "no such model in the catalog, no such file, and none on the hub (HTTP 404)"
OR_FILE = "download its config.json and give the file"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """A hub in this process, an empty cache, and the paths that were asked for."""
    paths = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            status, body = ANSWERS.get(
                self.path.removesuffix("/resolve/main/config.json"), (404, b"")
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    yield paths
    server.shutdown()
    thread.join()
    server.server_close()


def _fault(name):
    with pytest.raises(InputError) as caught:
        Model.load(name)
    (fault,) = str(caught.value).splitlines()
    return fault


def test_a_model_is_fetched_once(asked, tmp_path):
    """The second time it is in the cache."""
    first = Model.load("example/Qwen2.5-7B")
    second = Model.load("example/Qwen2.5-7B")

    assert asked == ["/example/Qwen2.5-7B/resolve/main/config.json"]
    assert first == second
    assert first.name == "qwen2.5-7b"
    assert first.hidden == 3584
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in kept] == ["Qwen2.5-7B.json"]
    assert json.loads(kept[0].read_text()) == CONFIG


def test_without_a_cache_it_is_fetched_again(asked, monkeypatch, tmp_path):
    """A folder that cannot be written is no reason to fail."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert Model.load("example/Qwen2.5-7B") == Model.load("example/Qwen2.5-7B")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some/thing", NOWHERE),
        ("some/gated", f"{GATED} (HTTP 401); {OR_FILE}"),
        ("some/closed", f"{GATED} (HTTP 403); {OR_FILE}"),
        ("some/broken", f"the hub answered HTTP 500; {OR_FILE}"),
        ("some/page", f"what the hub sent is no config.json; {OR_FILE}"),
        ("some/list", f"what the hub sent is no config.json; {OR_FILE}"),
        ("some/large", "what the hub sent is larger than 1048576 bytes"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_what_cannot_be_fetched_is_one_line(name, message, tmp_path):
    """And nothing is kept of it."""
    assert _fault(name) == f"model: {name!r}: {message}"
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("asked")
def test_what_is_not_modeled_is_told_of_the_model():
    """By its name on the hub."""
    message = "architectures: 'ZambaForCausalLM': Mamba layers of this class are not modeled"
    assert _fault("some/zamba") == f"some/zamba: {message}"


def test_other_nouns_and_paths_are_not_looked_for_there(asked):
    """A system is a name or a file, and a path is a file."""
    for load, name in ((System.load, "some/thing"), (Model.load, Path("some/thing"))):
        with pytest.raises(InputError):
            load(name)

    assert asked == []


@pytest.mark.usefixtures("asked")
def test_offline_is_one_line(monkeypatch):
    """Nobody listens there."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    fault = _fault("some/thing")

    assert fault.startswith("model: 'some/thing': the hub cannot be reached (")
    assert fault.endswith(f"); {OR_FILE}")


def test_without_an_address_it_is_told_how_to_give_one(monkeypatch):
    """No host is built in."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub.constants", None)

    with pytest.raises(UnknownNameError) as caught:
        Model.load("some/thing")

    message = "set the environment variable HF_ENDPOINT to its address, or download its config.json"
    assert message in str(caught.value)


def test_the_address_of_an_installed_library_is_used(asked, monkeypatch):
    """Where the environment gives none."""
    here = __import__("os").environ["HF_ENDPOINT"]
    monkeypatch.delenv("HF_ENDPOINT")
    library = type("constants", (), {"ENDPOINT": here})
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", object())
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub.constants", library)

    assert Model.load("example/Qwen2.5-7B").hidden == 3584
    assert len(asked) == 1


def test_an_address_of_another_kind_is_refused(monkeypatch):
    """Files are not read by address."""
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")

    assert _fault("some/thing") == "HF_ENDPOINT: 'file:///etc': must begin with http:// or https://"


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("example/Qwen2.5-7B", True),
        ("a/b", True),
        ("folder/model.yaml", False),
        ("folder/model.json.gz", False),
        ("./model", False),
        ("../model", False),
        ("/model", False),
        ("a/b/c", False),
        ("a/", False),
        ("a/b\n", False),
        ("a b/c", False),
        ("~/b", False),
        ("here/model", False),
    ],
)
def test_a_name_on_the_hub_is_no_file(name, is_id, monkeypatch, tmp_path):
    """Nor in a folder that is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()

    assert hub.is_hub_id(name) is is_id


@pytest.mark.parametrize(
    ("system", "variable", "folder"),
    [
        ("Linux", "XDG_CACHE_HOME", "shardwise"),
        ("Windows", "LOCALAPPDATA", "shardwise"),
        ("Linux", "", ".cache/shardwise"),
        ("Windows", "", "AppData/Local/shardwise"),
        ("Darwin", "", "Library/Caches/shardwise"),
    ],
)
def test_the_cache_is_where_the_platform_has_them(system, variable, folder, monkeypatch, tmp_path):
    """In the folder the user chose, or in that of the platform."""
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for known in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(known, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))

    assert hub._cache_folder() == tmp_path / folder  # noqa: SLF001 - by platform
