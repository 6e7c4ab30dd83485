"""Pages of the explorer without a browser: what they show of failures, and what they leave behind.

It needs the extra `web`.
"""

import asyncio
import gc
import json
import weakref
from dataclasses import replace

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("nicegui")

from fastapi import FastAPI  # noqa: E402 - an extra
from nicegui import Client, ElementFilter, core, ui  # noqa: E402

from event_loops import run_async  # noqa: E402
from shardwise import Model  # noqa: E402
from shardwise.web import page, views, workers  # noqa: E402
from shardwise.web.explorer import Explorer  # noqa: E402
from shardwise.web.workers import Job, faults_of  # noqa: E402

INTERNAL = "server: internal error (KeyError); details are in the log of the server"
QUERY = "/?model=llama3.2-1b&system=h100-sxm&gpus=8&gbs=16&zero=3&tab="
PIN = "model=llama3.2-1b&system=h100-sxm&gpus=8&gbs=16"


class Answers:
    """Stands for the pool and the jobs: computes views in this process, but those that fail."""

    failing = ""

    async def run(self, view, *arguments):
        if view.__name__ == self.failing:
            raise KeyError("offload_comm")
        return view(*arguments)

    def cancel(self, name):
        pass

    def start(self, work, question):
        if work.__name__ == self.failing:
            return Job(id="x", state="failed", errors=faults_of(KeyError("offload_comm")))
        return Job(id="x", state="done", result=work(question))


class Visit:
    """A server of the page alone, its answers, and its last page."""

    def __init__(self, http, answers):
        self.http, self.answers = http, answers
        self.explorers = []

    async def open(self, tab="estimate"):
        """Open a page, and wait for its first answer."""
        await self.http.get(QUERY + tab)
        self.client = list(Client.instances.values())[-1]
        with self.client:
            self.explorer.refresh()
        await self.settle()

    @property
    def explorer(self):
        return self.explorers[-1]()

    async def settle(self):
        """Wait until nothing is computed any more."""
        while tasks := [*self.explorer.tasks]:
            await asyncio.gather(*tasks)

    async def change(self, **fields):
        """Change the state of the page, and wait for the answer."""
        with self.client:
            self.explorer.set_state(replace(self.explorer.state, **fields))
        await self.settle()

    async def use(self, mark, kind="click", *arguments):
        """Use an element as a browser does, and wait for what follows."""
        with self.client:
            element = next(iter(ElementFilter(marker=mark)))
        for one in element._event_listeners.values():  # noqa: SLF001 - a browser names it too
            if one.type == kind:
                sent = [json.dumps(argument) for argument in arguments]
                event = {"id": element.id, "listener_id": one.id, "args": sent}
                self.client.handle_event(event)
        await asyncio.sleep(0.05)  # until handlers have started their work
        await self.settle()

    def visible(self):
        """Elements that a browser shows while their tab is open."""
        return [
            one
            for one in self.client.elements.values()
            if one.visible and all(around.visible for around in one.ancestors())
        ]

    def figures(self):
        """What the page shows of an answer."""
        found = []
        for one in self.visible():
            if isinstance(one, ui.html) and "sw-card" in one.classes:
                found += [one.content] if one.content else []
            elif isinstance(one, (ui.plotly, ui.code)):
                found.append(one)
            elif isinstance(one, ui.table):
                found += one.rows
            elif "sw-fact-value" in one.classes:
                found.append(one.text)
        return found

    def alerts(self):
        """Faults that the page shows."""
        return [one.text for one in self.visible() if "sw-faults" in one.classes]

    def notes(self):
        """Notifications that the page sends."""
        messages = [*self.client.outbox.messages]
        return [data["message"] for _, kind, data in messages if kind == "notify"]


def restart():
    """Let NiceGUI start again: it has one application in a process."""
    core.app.middleware_stack = None
    core.app.user_middleware.clear()


@pytest.fixture
def visit(monkeypatch):
    """Runs a test with a visit."""

    def runs(test):
        async def served():
            app, answers = FastAPI(), Answers()
            page.add_page(app, answers, answers)
            transport = httpx.ASGITransport(app=app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://test") as http,
            ):
                one = Visit(http, answers)

                class Recorded(Explorer):
                    def __init__(self, *arguments):
                        super().__init__(*arguments)
                        one.explorers.append(weakref.ref(self))

                monkeypatch.setattr(page, "Explorer", Recorded)
                try:
                    await test(one)
                finally:
                    for client in list(Client.instances.values()):
                        client.delete()

        run_async(served())

    restart()
    yield runs
    restart()


@pytest.mark.parametrize(
    ("view", "tab", "button"),
    [
        ("estimate_view", "estimate", None),
        ("search_view", "search", "start-search"),
        ("sweep_view", "sweep", "start-sweep"),
        ("compare_view", "compare", None),
        ("export_view", "estimate", "export"),
    ],
)
def test_a_failure_of_a_view_clears_its_figures_and_is_shown(visit, view, tab, button, caplog):
    """One line on the page, details in the log, and no older figures next to it."""

    async def act(one):
        await (one.use(button) if button else one.change(pinned=(PIN, PIN + "&tp=2")))

    async def test(one):
        await one.open(tab)
        await act(one)
        before = one.figures()
        assert one.alerts() == []
        one.answers.failing = view
        await act(one)
        assert one.alerts() == [INTERNAL]
        left = [figure for figure in one.figures() if figure in before]
        assert len(before) > len(left) == (9 if view == "export_view" else 0)
        assert "KeyError: 'offload_comm'" in caplog.text

    visit(test)


def test_figures_of_another_system_that_fail_are_shown(visit):
    """The list of what a sweep varies is that of the system of the page, or there is a fault."""

    async def test(one):
        await one.open("sweep")
        one.answers.failing = "figures_view"
        await one.change(system=replace(one.explorer.state.system, name="b200-sxm"))
        assert one.alerts() == [INTERNAL]
        one.answers.failing = ""
        await one.change()
        assert one.alerts() == []

    visit(test)


def test_a_view_that_cannot_be_shown_clears_the_figures(visit, monkeypatch, caplog):
    """The page itself may fail, not only what it asks for."""

    async def test(one):
        await one.open()
        assert one.figures()
        monkeypatch.setattr(views, "estimate_view", lambda *_: {"faults": [], "time": "old"})
        await one.change()
        assert one.alerts() == [INTERNAL]
        assert one.figures() == []
        assert "KeyError: 'facts'" in caplog.text

    visit(test)


def test_a_nearest_plan_that_fails_is_shown(visit):
    """Next to the figures of the plan, which are right."""

    async def test(one):
        one.answers.failing = "nearest_view"
        await one.open()
        await one.change(model=replace(one.explorer.state.model, name="llama3-70b"))
        assert one.alerts() == [INTERNAL]
        assert one.figures()

    visit(test)


def test_failures_of_event_handlers_are_notified(visit):
    """Of an upload, and of any other event; a file that is no text or too large is refused."""

    async def test(one):
        await one.open()
        model = json.dumps(Model.load("llama3-8b").to_dict() | {"name": "mine"})
        await one.use("model-file", "change", "mine.json", model)
        assert one.explorer.state.model.name == "mine"
        await one.use("model-file", "change", "a/large.json", None)
        await one.use("model-file", "change", "long.json", "x" * 70_000)
        one.answers.failing = "uploaded"
        await one.use("model-file", "change", "mine.json", model)
        one.client.handle_exception(KeyError("x"))
        assert one.notes() == [
            "model: mine",
            "large.json: is not UTF-8 text of at most 64 KiB",
            "long.json: is not UTF-8 text of at most 64 KiB",
            INTERNAL,
            INTERNAL,
        ]

    visit(test)


def test_pages_that_never_connect_leave_nothing(visit, monkeypatch):
    """They are deleted soon, with all that belongs to them."""
    monkeypatch.setattr(page, "_CONNECT_SECONDS", 0.01)

    async def test(one):
        for _ in range(3):
            assert (await one.http.get(QUERY)).status_code == 200
        for _ in range(1000):
            if not Client.instances:
                break
            await asyncio.sleep(0.01)
        gc.collect()
        assert len(one.explorers) == 3
        # The event loop may still have the last one.
        assert [explorer() for explorer in one.explorers[:-1]] == [None] * 2

    visit(test)


def test_closed_pages_stop_their_work(visit):
    """What they wait for is dropped."""

    async def test(one):
        await one.open()
        ended = asyncio.Event()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = one.explorer.start(work(), print)
        await asyncio.sleep(0)
        one.client.delete()
        await ended.wait()
        assert task.cancelling()

    visit(test)


def test_simultaneous_pages_are_bounded(visit, monkeypatch):
    """Those beyond the limit are refused in one line, until others are closed."""
    monkeypatch.setattr(page, "MOST_PAGES", 2)

    async def test(one):
        assert [(await one.http.get(f"/{n}")).status_code for n in range(4)] == [404] * 4
        answers = [await one.http.get(QUERY) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 503, 503]
        assert answers[-1].text == "too many pages are open; try again later"
        assert int(answers[-1].headers["retry-after"]) > 0
        assert len(Client.instances) == 2
        next(iter(Client.instances.values())).delete()
        assert (await one.http.get(QUERY)).status_code == 200

    visit(test)


class Pipe:
    """Stands for the pipe of a search."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def close(self):
        pass


def test_a_search_that_fails_sends_why(caplog):
    """The process of a search reports every exception, and logs its details."""

    def work(question, _):
        raise KeyError(question)

    pipe = Pipe()
    workers._search(pipe, work, "offload_comm")  # noqa: SLF001 - what its process runs
    [(kind, faults)] = pipe.sent
    assert kind == "faults"
    assert [str(fault) for fault in faults] == [INTERNAL]
    assert "KeyError: 'offload_comm'" in caplog.text
