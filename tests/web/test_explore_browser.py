"""The explorer in a browser: what a user does, with the numbers of the command line.

It needs the extra `web`, playwright, and Debian's Chromium.
"""

import http.server
import json
import re
import threading

import pytest

from shardwise import Model, estimate, search
from shardwise.launchers.registry import LAUNCHERS
from shardwise.launchers.stacks import launcher_of_stack
from shardwise.report.console import seconds
from shardwise.web.state import Named, State

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("nicegui")

from served import serving  # noqa: E402 - an extra

QUERY = "model=llama3-8b&system=h100-sxm&gpus=64&gbs=256&tp=2"
RUN = {"gpus": 64, "gbs": 256}


@pytest.fixture(scope="module")
def explorer():
    """A server on a free port, with processes of its own; and its address."""
    with serving(processes=2) as (server, port):
        yield server, f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def address(explorer):
    """Where the server is."""
    return explorer[1]


@pytest.fixture
def page(browser, address):
    """An empty page that notes errors, and requests to others than the server."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    one = context.new_page()
    one.set_default_timeout(60_000)
    wrong = []
    one.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    one.on("pageerror", lambda error: wrong.append(str(error)))
    one.on(
        "request",
        lambda sent: (
            None if sent.url.startswith((address, "data:", "blob:")) else wrong.append(sent.url)
        ),
    )
    yield one
    context.close()
    assert wrong == []


FILLS = "all => all.map(one => getComputedStyle(one).fill)"


def step_time(page):
    """What the card of the step time says."""
    return page.locator(".sw-fact-value").first


def expected(**fields):
    """What the command line says."""
    return seconds(estimate("llama3-8b", "h100-sxm", RUN | fields).step_time_s)


def number(page, field):
    """The number next to the slider of a field."""
    return page.get_by_label(f"{field}, number", exact=True)


def see(locator, text):
    """Wait until an element shows a text."""
    playwright.expect(locator).to_have_text(text, timeout=60_000)


def test_a_slider_changes_the_answer(page, address):
    """Figures are those of the command line; the address follows, and gives the view back."""
    page.goto(address + "?" + QUERY)
    see(step_time(page), expected(tp=2))
    page.locator(".q-slider [tabindex='0']").first.focus()
    page.keyboard.press("ArrowRight")
    see(step_time(page), expected(tp=4))
    page.wait_for_url("**tp=4*")
    number(page, "pp").fill("2")
    see(step_time(page), expected(tp=4, pp=2))
    page.wait_for_url("**pp=2*")
    again = page.context.new_page()
    again.goto(page.url)
    see(step_time(again), expected(tp=4, pp=2))
    assert number(again, "pp").input_value() == "2"


def test_what_cannot_run_says_why(page, address):
    """The message of the command line, and the way back."""
    page.goto(address + "?" + QUERY)
    see(step_time(page), expected(tp=2))
    number(page, "tp").fill("3")
    see(
        page.get_by_role("alert").first,
        "strategy: tp: 3: must divide gpus 64",
    )
    number(page, "tp").fill("2")
    see(step_time(page), expected(tp=2))


def test_a_plan_that_does_not_fit_offers_the_nearest(page, address):
    """One click takes it, and it fits."""
    page.goto(address + "?model=llama3-70b&system=h100-sxm&gpus=64&gbs=256")
    playwright.expect(page.get_by_role("status").first).to_contain_text("does not fit")
    page.get_by_role("button", name="Change it: fits with").click()
    memory = page.locator(".sw-fact", has_text="Memory").first
    verdict = page.get_by_role("status").first
    playwright.expect(verdict).to_contain_text("fits: ", timeout=60_000)
    playwright.expect(memory).to_be_visible()


def test_a_search_loads_its_best_plan(page, address):
    """A row of the table becomes the plan of the page, with its time."""
    page.goto(address + "?" + QUERY)
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Search").click()
    row = page.locator("tbody tr").first
    row.wait_for()
    assert page.get_by_text("fits with").first.is_visible()
    shown = row.inner_text()
    row.click()
    is_shown = "shown => shown.includes(document.querySelector('.sw-fact-value')?.textContent || 0)"
    page.wait_for_function(is_shown, arg=shown)
    copied = page.context.new_page()
    copied.goto(page.url)
    see(copied.locator(".sw-fact-value").first, step_time(page).inner_text())


def test_a_plan_for_experts_takes_one_search(page, address):
    """Task 3: the recommended plan with its probability and a safer one; both load, and fit."""
    page.goto(address + "?model=qwen3-30b-a3b&system=h100-sxm&gpus=32&gbs=512&tab=search")
    page.get_by_role("button", name="Search").click()
    for name in ("recommended", "safer"):
        page.get_by_role("button", name=f"Load the {name} plan").click(timeout=120_000)
        verdict = page.get_by_role("status").first
        playwright.expect(verdict).to_contain_text("fits: ", timeout=60_000)
        memory = page.locator(".sw-fact", has_text="Memory").first.inner_text()
        gib, capacity = (float(text) for text in re.findall(r"([\d.]+) GiB", memory))
        assert gib < 0.9 * capacity
        page.get_by_role("tab", name="Search").click()


def test_a_cell_of_the_map_loads_its_plan(page, address):
    """A click on the cell of tp 1 and pp 1 shows the best plan of the cell."""
    page.goto(address + "?" + QUERY)
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Search").click()
    cells = page.get_by_role("figure", name="tp and pp").locator(".nsewdrag")
    cells.hover(position={"x": 30, "y": 20})
    cells.click(position={"x": 30, "y": 20})
    page.wait_for_url(lambda url: "tab=" not in url)
    page.wait_for_function("document.querySelector('.sw-fact-value')?.textContent")
    assert number(page, "tp").input_value() == "1"
    assert number(page, "pp").input_value() == "1"
    assert "tab=" not in page.url


def test_pinned_plans_are_compared(page, address):
    """Two plans next to each other; a row loads its plan."""
    page.goto(address + "?" + QUERY)
    see(step_time(page), expected(tp=2))
    page.get_by_role("button", name="Pin for comparison").click()
    number(page, "tp").fill("4")
    see(step_time(page), expected(tp=4))
    page.get_by_role("button", name="Pin for comparison").click()
    page.get_by_role("tab", name="Compare").click()
    rows = page.locator(".sw-plan")
    playwright.expect(rows).to_have_count(2, timeout=60_000)
    assert expected(tp=2) in rows.nth(0).inner_text()
    assert expected(tp=4) in rows.nth(1).inner_text()
    rows.nth(0).click()
    see(step_time(page), expected(tp=2))


def test_a_sweep_draws_its_values(page, address):
    """A figure of the system against the step time."""
    page.goto(address + "?" + QUERY)
    page.get_by_role("tab", name="Sweep").click()
    page.get_by_role("button", name="Light or dark").click()
    page.get_by_role("button", name="Sweep").click()
    page.locator(".js-plotly-plot").first.wait_for()
    page.locator(".updatemenu-item-rect").first.wait_for()
    fills = page.locator(".updatemenu-item-rect").evaluate_all(FILLS)
    assert len(fills) == 2
    for fill in fills:
        assert max(map(int, re.findall(r"\d+", fill)[:3])) < 160


def test_plans_fit_narrow_screens(page, address):
    """No table of plans scrolls sideways; what has no column is in the line below."""
    page.goto(address + "?" + QUERY)
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("button", name="Search").click()
    page.locator(".sw-plan").first.wait_for()
    first = page.locator(".sw-plan:nth-child(1):visible, .sw-rest:nth-child(2):visible")
    shown = []
    for width in (1600, 1024, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(300)
        box = "[...document.querySelectorAll('.sw-plans .q-table__middle')]"
        assert page.evaluate(box + ".every(e => e.scrollWidth <= e.clientWidth)")
        shown.append(" ".join(first.all_inner_texts()).split())
    cells = {text for text in shown[0] if text != "-"}
    assert all(cells <= set(texts) for texts in shown[1:])


def test_the_first_link_leads_past_the_inputs(page, address):
    """On a keyboard: what a phone shows as its last line."""
    page.goto(address + "?" + QUERY)
    see(step_time(page), expected(tp=2))
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(focused + ".textContent").startswith("Results: fits · ")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate(focused + ".closest('#results') !== null")


def test_an_uploaded_model_is_read_as_data(page, address, tmp_path):
    """A Hugging Face config of a catalog model gives its time; a script in a name is text."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    path = tmp_path / "<img src=x onerror=alert(1)>.json"
    path.write_text(json.dumps(config))
    page.goto(address + "?model=llama3-70b&system=h100-sxm&gpus=64&gbs=256&tp=2&seq_len=8192")
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.locator("input[type=file]").first.set_input_files(path)
    see(step_time(page), expected(tp=2, seq_len=8192))
    again = page.context.new_page()
    page.wait_for_url("**model-data=**")
    again.goto(page.url)
    see(again.locator(".sw-fact-value").first, expected(tp=2, seq_len=8192))


def test_a_saved_result_is_opened(page, address, tmp_path):
    """The first plan of a search in the inputs, and all to compare; what is none says so."""
    found = search("llama3-8b", "h100-sxm", gpus=64, gbs=256, pp=1, top=2)
    found.save(tmp_path / "found.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    page.goto(address)
    page.get_by_label("File of a saved result").set_input_files(tmp_path / "found.json")
    see(step_time(page), seconds(found.rows[0].step_time_s))
    page.wait_for_url("**pin=**")
    page.get_by_role("tab", name="Compare").click()
    playwright.expect(page.locator(".sw-plan")).to_have_count(2, timeout=60_000)
    page.wait_for_url("**tab=compare**")
    page.get_by_label("File of a saved result").set_input_files(tmp_path / "other.json")
    page.get_by_text("other.json: is no saved estimate or search").wait_for()


def test_a_model_in_the_address_is_data(page, address):
    """Names of scripts are shown, not run."""
    data = Model.load("llama3-8b").to_dict() | {"name": "<script>alert(1)</script>"}
    state = State(
        model=Named(name="<script>alert(1)</script>", data=data),
        strategy={"gpus": "64", "global_batch_size": "256", "tp": "2"},
    )
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(address + "?" + state.to_query())
    see(step_time(page), expected(tp=2))


def test_a_plan_is_exported(page, address):
    """The files of a launcher, or why it cannot run the plan."""
    page.goto(address + "?" + QUERY.replace("tp=2", "zero=3"))
    see(step_time(page), expected(zero=3))
    page.get_by_role("button", name="Export to a launcher").click()
    page.locator(".sw-code").first.wait_for()
    own = launcher_of_stack(estimate("llama3-8b", "h100-sxm", RUN | {"zero": 3}).software.stack)
    title = next(one.title for one in LAUNCHERS if one.name == own)
    assert page.get_by_label("launcher", exact=True).input_value().startswith(title)


def test_changes_are_undone_by_keyboard(page, address):
    """Undo and redo; a figure of the model; the verdict is read out."""
    page.goto(address + "?" + QUERY)
    see(step_time(page), expected(tp=2))
    number(page, "tp").fill("4")
    see(step_time(page), expected(tp=4))
    page.get_by_role("button", name="Undo the last change").press("Enter")
    see(step_time(page), expected(tp=2))
    page.get_by_role("button", name="Redo").press("Enter")
    see(step_time(page), expected(tp=4))
    page.get_by_text("Figures of the model").focus()
    page.get_by_text("Figures of the model").click()
    page.get_by_label("hidden", exact=True).fill("8192")
    model = Model.load(State(model=Named(name="llama3-8b"), shape={"hidden": "8192"}).model_value())
    see(step_time(page), seconds(estimate(model, "h100-sxm", RUN | {"tp": 4}).step_time_s))
    playwright.expect(page.get_by_role("status").first).to_contain_text("fits")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_is_accessible(page, address, scheme):
    """No violation of WCAG 2.1 AA that axe-core finds, and no tab that only a mouse reaches."""
    axe = pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT
    tabs = page.get_by_role("tab")
    page.emulate_media(color_scheme=scheme)
    page.goto(address + "?" + QUERY + "&tokens=1T")
    see(step_time(page), expected(tp=2))
    found = []
    for number_ in range(tabs.count()):
        tabs.nth(number_).press("Enter")
        page.evaluate(axe)
        run = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})"
        for _ in range(20):  # axe measures the colors of what still moves
            page.wait_for_timeout(500)
            violations = page.evaluate(run)["violations"]
            if not violations:
                break
        found += [(one["id"], one["nodes"][0]["html"]) for one in violations]
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1024, 1600])
def test_the_page_fits_its_width(browser, address, scheme, width):
    """No horizontal scrolling, in both themes; inputs have labels."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    one = context.new_page()
    one.goto(address + "?" + QUERY + "&pp=2&vpp=4")
    see(step_time(one), expected(tp=2, pp=2, vpp=4))
    size = one.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1] + 1
    inputs = one.evaluate(
        "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.sw-inputs'))"
    )
    assert inputs[0] <= inputs[1]
    dark = one.evaluate("document.body.classList.contains('body--dark')")
    assert dark == (scheme == "dark")
    nameless = one.evaluate(
        """[...document.querySelectorAll('button, input:not([type=file]), [role=slider]')]
        .filter(e => e.offsetParent && !(e.ariaLabel || e.labels?.length || e.textContent.trim()
          || e.closest('[aria-label]'))).map(e => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    context.close()


ATTACK = """([address, question]) => {
  const outcome = promise => promise.then(answer => answer.type, error => 'refused')
  const post = (type, mode) => outcome(fetch(address + 'api/v1/search',
    {method: 'POST', mode, headers: {'content-type': type}, body: JSON.stringify(question)}))
  const socket = new WebSocket(address.replace('http', 'ws')
    + '_nicegui_ws/socket.io/?EIO=4&transport=websocket')
  const script = document.createElement('script')
  script.src = address + 'api/v1/models'
  const ends = (target, good) => new Promise(done => {
    target.addEventListener(good, () => done(good))
    target.addEventListener('error', () => done('refused'))
  })
  document.head.append(script)
  return Promise.all([
    post('text/plain', 'no-cors'),
    post('application/json', 'cors'),
    outcome(fetch(address + 'api/v1/models')),
    outcome(fetch(address + '_nicegui_ws/socket.io/?EIO=4&transport=polling')),
    ends(socket, 'open'),
    ends(script, 'load'),
  ])
}"""


@pytest.fixture
def foreign():
    """Address of an empty page of another server of this machine."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"//localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "other.localhost"])
def test_a_page_of_another_site_cannot_use_the_server(
    browser, explorer, foreign, name, monkeypatch
):
    """It starts no search, reads no answer, and opens no web socket."""
    server, address = explorer
    context = browser.new_context()
    one = context.new_page()
    one.goto("http:" + foreign.replace("localhost", name))
    question = {"model": "llama3-8b", "system": "h100-sxm", "space": {"gpus": 8, "gbs": 8}}
    searches = []
    monkeypatch.setattr(server.jobs, "start", lambda *words: searches.append(words))
    assert one.evaluate(ATTACK, [address, question]) == ["refused"] * 6
    assert searches == []
    context.close()


def test_a_name_that_points_here_is_refused(browser, address):
    """As after DNS rebinding: a page of the name would be of the same origin."""
    context = browser.new_context()
    answer = context.new_page().goto(address.replace("127.0.0.1", "other.localhost"))
    assert answer.status == 421
    assert "no server of this name" in answer.json()["errors"][0]["message"]
    context.close()


def test_a_page_keeps_what_it_shows(page, address):
    """It runs no scripts of other sites, sends them nothing, and is in no frame of theirs."""
    policy = page.goto(address + "?" + QUERY).headers["content-security-policy"].split("; ")
    see(step_time(page), expected(tp=2))
    assert {"default-src 'self'", "frame-ancestors 'self'", "object-src 'none'"} <= set(policy)
    assert not [words for words in policy if "*" in words or "http" in words]
