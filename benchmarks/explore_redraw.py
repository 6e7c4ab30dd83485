"""Time from a key on a slider of the explorer to the new step time on the page, in a browser.

    python benchmarks/explore_redraw.py URL

URL is that of a running `shardwise explore --no-open`. The browser itself takes the time, from the
key event to the first frame after the text has changed.
"""

import shutil
import statistics
import sys

from playwright.sync_api import sync_playwright

_QUERY = "?model=llama3-8b&system=h100-sxm&gpus=64&gbs=256&tp=1"
_KEYS = ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"]
_WATCH = """() => {
  const shown = document.querySelector('.sw-fact-value');
  window.times = [];
  let started = 0;
  document.addEventListener('keydown', () => { started = performance.now(); }, true);
  new MutationObserver(() => requestAnimationFrame(() => {
    if (started) { window.times.push(performance.now() - started); started = 0; }
  })).observe(shown, {childList: true, characterData: true, subtree: true});
}"""


def main(url: str) -> int:
    """Press keys on the slider of tp, and print the times."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.goto(url + _QUERY)
        page.locator(".sw-fact-value").first.wait_for()
        page.evaluate(_WATCH)
        page.locator(".q-slider [tabindex='0']").first.focus()
        for key in _KEYS * 5:
            page.keyboard.press(key)
            page.wait_for_timeout(500)
        times = sorted(page.evaluate("window.times"))
        browser.close()
    median, high = statistics.median(times), times[int(0.95 * len(times))]
    print(f"{len(times)} changes of a slider: median {median:.0f} ms, 95 % below {high:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
