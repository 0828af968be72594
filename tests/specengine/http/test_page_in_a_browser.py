"""The page in a real Chromium: what it shows, in light and dark, wide and narrow, by keyboard.

Needs Debian's package ``chromium``. With ``PAGE_PICTURES=FOLDER`` it leaves pictures there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from specengine.decoding.session import Drafting
from specengine.engine import Facts
from specengine.http.guard import Rules
from specengine.journal import Journal
from specengine.protocol import EngineState, PhaseTimes, TokenCounts
from specengine.record import Record
from tests.specengine.http.conftest import Play
from tests.specengine.http.scripted import ScriptedEngine

pytestmark = pytest.mark.slow

KEY = "a key of some length"
WAIT_S = 90.0
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def busy_journal() -> Journal:
    """Return a journal with requests of all kinds."""
    journal = Journal()
    told = Drafting(drafts=9, drafted=40, accepted=22, accepted_at=[8, 6, 4, 2, 1, 1])
    for number in range(12):
        ms = PhaseTimes(0.4, 58.0 / (number + 1), 1.2, 20.0 * number + 5, 90.0 + 20 * number)
        tokens = TokenCounts(266, 264 - number, 2 + number, 14, 9, 18)
        result = ("end_token", "length", "superseded", "stopped")[number % 4]
        record = Record(time.time(), number % 3, result, "suffix", ms, tokens, 6, {"suffix": told})
        journal.add(replace(record, prefix="def secret(", text="<b>self</b>):"))
    journal.add(Record(time.time(), 0, "engine_busy", "", PhaseTimes(total=0.2), TokenCounts()))
    return journal


def busy_engine() -> ScriptedEngine:
    slots = ((812, True), (300, False), (120, False))
    return ScriptedEngine(facts=Facts("int8", "cpu", slots, 44_000_000, 0))


@asynccontextmanager
async def opened(port: int, **options: object) -> AsyncIterator[Page]:
    """Return the page, and hold that it asked nobody else and said nothing to the console."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("apt install chromium")
    asked: list[str] = []
    said: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = await browser.new_page(**options)  # type: ignore[arg-type]
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(f"http://127.0.0.1:{port}/")
        yield page
        await browser.close()
    assert all(url.startswith((f"http://127.0.0.1:{port}/", "data:")) for url in asked)
    assert not [text for text in said if "401" not in text]


async def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("PAGE_PICTURES"):
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def show(play: Play, look: Callable[[Page], Awaitable[None]], **options: object) -> None:
    """Let a test look at the page of a busy engine."""

    async def scene(port: int) -> None:
        async with opened(port, **options) as page:
            await look(page)

    play(scene, busy_engine(), journal=busy_journal(), wait_s=WAIT_S)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_shows_the_engine_and_its_requests(play: Play, scheme: str, width: int) -> None:
    async def look(page: Page) -> None:
        await expect(page.locator("#state")).to_have_text("ok")
        await expect(page.locator("#requests li")).to_have_count(13)
        await expect(page.locator("#now")).to_contain_text("int8")
        await expect(page.locator("#slots")).to_contain_text("slot 1: busy")
        await expect(page.locator("#slots")).to_contain_text("slot 4: unused")
        await expect(page.locator("#accept tbody")).to_contain_text("suffix")
        await expect(page.locator("#accept tbody")).to_contain_text("89 %")
        await expect(page.locator("#phases tbody tr")).to_have_count(5)
        await picture(page, f"{scheme}-{width}")
        is_wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.evaluate(is_wider)
        assert "secret" not in await page.content()

    show(play, look, color_scheme=scheme, viewport={"width": width, "height": 900})


def test_source_text_is_shown_as_text_once_it_is_wanted(play: Play) -> None:
    journal = busy_journal()

    async def scene(port: int) -> None:
        async with opened(port) as page:
            await expect(page.locator("#requests li")).to_have_count(13)
            await page.get_by_label("keep and show source text").check()
            await expect(page.get_by_label("keep and show source text")).to_be_checked()
            assert journal.keeps_texts
            record = Record(
                time.time(), 0, "length", "none", PhaseTimes(total=1.0), TokenCounts(), 1
            )
            journal.add(replace(record, prefix="def secret(", text="<b>self</b>):"))
            await expect(page.locator("pre").first).to_have_text("def secret(<b>self</b>):")
            await picture(page, "texts")
            await page.get_by_label("keep and show source text").uncheck()
            await expect(page.locator("pre")).to_have_count(0)

    play(scene, busy_engine(), journal=journal, wait_s=WAIT_S)


def test_it_asks_for_the_key_and_goes_on_with_the_right_one(play: Play) -> None:
    async def scene(port: int) -> None:
        async with opened(port) as page:
            field = page.get_by_label("This engine wants its key")
            await field.fill("a wrong one")
            await page.get_by_role("button", name="Use it").click()
            await expect(page.locator("#key-note")).to_have_text("That key is not right.")
            await picture(page, "key")
            await field.fill(KEY)
            await field.press("Enter")
            await expect(page.locator("#state")).to_have_text("ok")
            await expect(field).to_be_hidden()

    play(scene, busy_engine(), Rules(api_key=KEY), busy_journal(), wait_s=WAIT_S)


def test_it_tells_what_is_off_and_that_the_engine_has_gone(play: Play) -> None:
    engine = busy_engine()

    async def scene(port: int) -> None:
        async with opened(port) as page:
            await expect(page.locator("#state")).to_have_text("ok")
            engine.watch.switch_off("drafter", "suffix", "2.0 ms a token, 1.0 ms without")
            await expect(page.locator("#notes")).to_contain_text("drafter suffix is off: 2.0 ms")
            engine.state = EngineState.LOADING
            await expect(page.locator("#state")).to_have_text("loading model")
            await picture(page, "notes")

    play(scene, engine, journal=busy_journal(), wait_s=WAIT_S)


def test_everything_is_reached_and_named_without_a_mouse(play: Play) -> None:
    async def look(page: Page) -> None:
        await expect(page.locator("#requests li")).to_have_count(13)
        reached: list[str] = []
        for _ in range(5):
            await page.keyboard.press("Tab")
            reached.append(await page.evaluate("document.activeElement.id"))
        assert reached[:4] == ["pause", "phases", "accept", "texts"]
        await page.locator("#pause").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Go on")).to_have_attribute(
            "aria-pressed", "true"
        )
        tree = await page.locator("body").aria_snapshot()
        for named in ('heading "Last requests"', 'table "Share of drafts', "checkbox"):
            assert named in tree
        assert re.search(r'img "waiting .* ms, reading .* ms, drafting .* ms', tree)

    show(play, look)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(play: Play, scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for text of this size."""

    async def look(page: Page) -> None:
        await expect(page.locator("#requests li")).to_have_count(13)
        poor = await page.evaluate(CONTRAST)
        assert poor == []

    show(play, look, color_scheme=scheme)


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
  };
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const pair = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort();
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) poor.push(element.textContent.slice(0, 40) + " " + ratio.toFixed(2));
  }
  return poor;
}"""
