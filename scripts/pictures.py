"""Draw the pictures of README and the documentation: charts of a search, and the explorer.

python scripts/pictures.py

It needs the extra `web`, playwright and Chromium. Look at the pictures before you commit them.
"""

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from shardwise.cli import run
from shardwise.web.serve import Server

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
SEARCH = "search llama3-70b h100-sxm --gpus 64 --gbs 128 --top 5"
CHARTS = 1  # of the page: time of the best strategies
PLAN = "model=llama3-70b&system=h100-sxm&gpus=64&gbs=128&tp=8&pp=2"


def charts_of_a_search(browser: Browser, path: Path) -> None:
    """Photograph the first charts of `search --plot`."""
    page = browser.new_page(
        viewport={"width": 860, "height": 1400}, device_scale_factor=1.5, color_scheme="light"
    )
    with tempfile.TemporaryDirectory() as folder:
        charts = Path(folder) / "charts.html"
        run([*SEARCH.split(), "--plot", str(charts)])
        page.goto(charts.as_uri())
        page.wait_for_selector(".js-plotly-plot .main-svg")
        boxes = [one.bounding_box() for one in page.locator(".js-plotly-plot").all()[:CHARTS]]
        end = max(box["y"] + box["height"] for box in boxes if box)
        page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 860, "height": end + 16})


@contextmanager
def explorer() -> Iterator[str]:
    """Serve the explorer on a free port, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = threading.Event()
    app = Server(processes=2, ready=started.set).app
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    started.wait(60)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(30)


def page_of_the_explorer(browser: Browser, path: Path) -> None:
    """Photograph the explorer with a plan."""
    page = browser.new_page(viewport={"width": 1160, "height": 760}, color_scheme="light")
    with explorer() as address:
        page.goto(f"{address}?{PLAN}")
        page.get_by_text("Memory by stage").wait_for()
        page.wait_for_timeout(1000)  # sliders move to their values
        page.screenshot(path=path)


def main() -> None:
    """Write both pictures."""
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        charts_of_a_search(browser, ASSETS / "search.png")
        page_of_the_explorer(browser, ASSETS / "explorer.png")
        browser.close()


if __name__ == "__main__":
    main()
