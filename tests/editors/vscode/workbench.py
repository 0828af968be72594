"""Hands and eyes of a user in front of VS Code's workbench: a page of a browser.

It knows what the workbench looks like in HTML, and nothing of the extension but its name.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page

T = TypeVar("T")

BROWSER: Final = "/usr/bin/chromium"
BROWSER_ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
TIMEOUT_MS: Final = 180_000
PATIENCE_S: Final = 120.0
"""For a screen to become right; a fraction of a second where nothing else runs."""

MODEL_PATIENCE_S: Final = 300.0
"""For a model to load or to write; seconds where nothing else keeps the processors busy."""
STATUS: Final = '[id="specengine.specengine.specengine"]'
"""The status bar item: extension and item."""


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """Open an empty page in a fresh browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER,
            args=list(BROWSER_ARGUMENTS),
            headless=True,
            timeout=TIMEOUT_MS,
        )
        page = browser.new_page(
            viewport={"width": 1100, "height": 640},
            permissions=["clipboard-read", "clipboard-write"],
        )
        page.set_default_timeout(TIMEOUT_MS)
        try:
            yield page
        finally:
            browser.close()


@dataclass(frozen=True)
class Look:
    """What one look at the editor shows."""

    text: str
    """The lines on the screen, without what is grey; trailing blanks are lost."""
    grey: str
    """The grey text, lines joined by line feeds; empty without any."""

    @property
    def words(self) -> list[str]:
        """Both together; blanks are not told apart."""
        return (self.text + self.grey).split()


class Workbench:
    """One window with one folder."""

    def __init__(self, page: Page, address: str, folder: Path, pictures: Path) -> None:
        self.page = page
        self._address = address
        self._folder = folder
        self._pictures = pictures

    def load(self, name: str) -> None:
        """Load the window with a file of the folder in the editor."""
        host = urlsplit(self._address).netloc
        payload = json.dumps([["openFile", f"vscode-remote://{host}{self._folder / name}"]])
        query = f"folder={quote(str(self._folder))}&payload={quote(payload)}"
        self.page.goto(f"{self._address}/?{query}")
        self._await_tab(name)

    def open(self, name: str, line: int, column: int) -> None:
        """Open another file of the folder, and put the cursor somewhere."""
        self.page.locator(".explorer-folders-view .monaco-list-row", has_text=name).dblclick()
        self._await_tab(name)
        self.press("Control+G")
        box = self.page.locator(".quick-input-widget input")
        box.wait_for(state="visible")
        box.fill(f":{line}:{column}")
        place = re.compile(rf"\b{line}\b.*\b{column}\b")
        self.page.locator(".quick-input-list .monaco-list-row", has_text=place).wait_for()
        self.press("Enter")
        box.wait_for(state="hidden")
        self.page.wait_for_selector(".monaco-editor.focused")
        position = re.compile(rf"Ln {line}, Col {column}\b")
        self.page.locator(".statusbar-item", has_text=position).wait_for()

    def type(self, text: str, delay_ms: float = 60) -> None:
        """Type a text, a key at a time."""
        self.page.keyboard.type(text, delay=delay_ms)

    def replace_all(self, text: str) -> None:
        """Put a text in the place of all there is; the cursor stands at its end."""
        self.press("Control+A")
        self.page.keyboard.insert_text(text)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as playwright names them."""
        for key in keys:
            self.page.keyboard.press(key)

    def run(self, command: str) -> None:
        """Run a command by its name in the palette."""
        self.press("F1")
        box = self.page.locator(".quick-input-widget input")
        box.wait_for(state="visible")
        box.fill(f">{command}")
        self.choose(command)

    def choices(self) -> list[str]:
        """Return what a list that has popped up offers."""
        rows = self.page.locator(".quick-input-list .monaco-list-row")
        rows.first.wait_for()
        return [_plain(text) for text in rows.all_inner_texts()]

    def choose(self, label: str) -> None:
        """Choose in such a list."""
        self.page.locator(".quick-input-list .monaco-list-row", has_text=label).first.click()

    def notices(self) -> list[str]:
        """Return all messages that have been shown and not closed."""
        self.run("Notifications: Show Notifications")
        self.page.locator(".notifications-center.visible").wait_for()
        rows = self.page.locator(".notifications-center .notification-list-item-message")
        texts = [_plain(text) for text in rows.all_inner_texts()]
        self.run("Notifications: Hide Notifications")
        return texts

    def look(self) -> Look:
        """Look once, so that text and grey text belong together."""
        lines, inline, below = self.page.evaluate(_LOOK)
        text = "\n".join(_plain(line).rstrip() for line in lines)
        return Look(text, _plain("\n".join(["".join(inline), *below])).rstrip())

    def ghost_text(self) -> str:
        """Return the grey text, lines joined by line feeds; empty without any."""
        return self.look().grey

    def copy_all(self) -> str:
        """Return the whole document, also what is not on the screen, by way of the clipboard."""
        self.press("Control+A", "Control+C")
        return self.page.evaluate("navigator.clipboard.readText()")

    def choose_theme(self, name: str) -> None:
        """Change the colours."""
        self.press("Control+K", "Control+T")
        box = self.page.locator(".quick-input-widget input")
        box.wait_for(state="visible")
        box.fill(name)
        self.choose(name)
        self.page.locator(".quick-input-widget").wait_for(state="hidden")

    def text(self) -> str:
        """Return the lines on the screen, without what is grey; trailing blanks are lost."""
        return self.look().text

    def status(self) -> str:
        """Return the words of our status bar item; empty while there is none."""
        item = self.page.locator(STATUS)
        return _plain(item.inner_text()).strip() if item.count() else ""

    def status_label(self) -> str:
        """Return what a screen reader says of it."""
        return self.page.locator(f"{STATUS} a").get_attribute("aria-label") or ""

    def await_status(self, pattern: str, timeout_s: float = MODEL_PATIENCE_S) -> str:
        """Wait until our status bar item matches; return its words."""
        return self.await_value(self.status, lambda text: bool(re.search(pattern, text)), timeout_s)

    def await_ghost_text(self, expected: str = "") -> str:
        """Wait for grey text, for any or for the expected one; return it."""
        is_right = expected.__eq__ if expected else bool
        return self.await_value(self.ghost_text, is_right, MODEL_PATIENCE_S)

    def await_text(self, part: str) -> None:
        """Wait until the screen has a text somewhere."""
        self.await_value(self.text, lambda text: part in text)

    def await_no_ghost_text(self) -> None:
        """Wait until there is none."""
        self.await_value(self.ghost_text, "".__eq__)

    def await_value(
        self, read: Callable[[], T], is_right: Callable[[T], bool], timeout_s: float = PATIENCE_S
    ) -> T:
        """Read again and again until the value is right."""
        deadline = time.monotonic() + timeout_s
        while not is_right(value := read()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"it is still {value!r}")
            self.page.wait_for_timeout(50)
        return value

    def picture(self, name: str) -> None:
        """Write a picture of the window."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        self.page.mouse.move(0, 0)
        self.page.wait_for_timeout(500)  # until nothing glides or fades any more
        self.page.screenshot(path=self._pictures / f"{name}.png")

    def _await_tab(self, name: str) -> None:
        self.page.wait_for_selector(f'.tab.active[data-resource-name="{name}"]')
        self.page.wait_for_selector(".monaco-editor .view-line")


_LOOK: Final = """() => {
    const isGrey = (node) => node.className?.includes?.("ghost-text");
    const textOf = (node) => isGrey(node) ? "" : node.nodeType === Node.TEXT_NODE
        ? node.data : [...node.childNodes].map(textOf).join("");
    const top = (line) => parseInt(line.style.top);
    const lines = [...document.querySelectorAll(".editor-instance .view-lines > .view-line")];
    const wordsOf = (selector) =>
        [...document.querySelectorAll(selector)].map((node) => node.innerText);
    return [
        lines.sort((a, b) => top(a) - top(b)).map(textOf),
        wordsOf(".view-lines [class*='ghost-text-decoration']"),
        wordsOf(".view-zones .suggest-preview-text .view-line"),
    ];
}"""
"""The lines stand in the page in any order; their position says which comes first."""


def _plain(text: str) -> str:
    return text.replace("\xa0", " ").replace("\u200b", "")
