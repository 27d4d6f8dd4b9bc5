"""The page in a real browser: it draws, it answers, it fetches nothing, it fits a phone and paper.

Debian's chromium and chromium-driver, driven by selenium; skipped where they are not installed.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_answers import answer, plan

import specsched
from specsched.report import page
from specsched.trace import synthesise

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
)
EVIL = "<img src=x onerror=document.title='caught'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """An answer of our own making, explored, on its page."""
    trace = synthesise([0.8, 0.7, 0.6], requests=40, seed=2, output_tokens=60.0)
    profile = specsched.load_profile("h100-sxm_qwen3-8b_bf16_tp1")
    options: dict[str, Any] = {"requests": 40, "workers": 1, "policies": ["off", "fixed:3", "lagged:2"]}
    options["prefill"] = "disaggregated"
    found = specsched.answer(trace, profile, 120.0, explore=True, **options)
    folder = tmp_path_factory.mktemp("real")
    page.write_answer(found, folder, "specsched simulate", page.Background(trace, profile))
    return dict(found), folder / "report.html"


def shown(browser: Any, path: Path, width: int = 1200, height: int = 900) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def move_to(browser: Any, sla: float) -> None:
    box = browser.find_element(By.ID, "sla-number")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(f"{sla:g}")


def test_it_draws_without_errors_and_fetches_nothing(browser: Any, real: tuple[Any, Path]) -> None:
    found, path = real
    shown(browser, path)
    assert texts(browser, "h1") == [found["headline"]]
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot")
    assert len(plots) >= 5
    assert all(plot.find_elements(By.CSS_SELECTOR, "svg.main-svg .trace") for plot in plots)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []


def test_moving_the_sla_gives_what_the_answer_for_it_gives(browser: Any, real: tuple[Any, Path]) -> None:
    found, path = real
    shown(browser, path)
    for stop in (at["sla_tps"] for at in found["policies"][0]["capacity_at"]):
        move_to(browser, stop)
        read = dict(zip(texts(browser, ".policies .name"), texts(browser, ".policies .users"), strict=True))
        for policy in found["policies"]:
            at = next(at for at in policy["capacity_at"] if at["sla_tps"] == stop)
            assert read[policy["policy"]] == f"{at['capacity']:,}", (policy["policy"], stop)
        assert texts(browser, "#reading")[0].startswith(f"At {stop:g} tokens/s: ")
        line = browser.execute_script("return document.getElementById('plot-speed').layout.shapes[0].x0")
        assert line == stop
    browser.find_element(By.ID, "sla-reset").click()
    read = dict(zip(texts(browser, ".policies .name"), texts(browser, ".policies .users"), strict=True))
    assert read == {policy["policy"]: f"{policy['capacity']:,}" for policy in found["policies"]}


def test_the_line_can_be_dragged(browser: Any, real: tuple[Any, Path]) -> None:
    shown(browser, real[1])
    browser.execute_async_script(
        "Plotly.relayout('plot-speed', {'shapes[0].x0': 140.2, 'shapes[0].x1': 140.2}).then(arguments[0])"
    )
    assert texts(browser, "#reading")[0].startswith("At 140 tokens/s: ")


def test_policies_are_toggled_and_everything_is_reached_by_keyboard(
    browser: Any, real: tuple[Any, Path]
) -> None:
    shown(browser, real[1])
    reached: list[str] = []
    while len(reached) < 60 and "measure" not in reached:
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        reached.append(active.get_attribute("id") or active.get_attribute("type") or active.tag_name)
    assert {"theme", "sla", "sla-number", "sla-reset", "checkbox", "measure"} <= set(reached)
    box = browser.find_element(By.CSS_SELECTOR, ".policies input")
    name = texts(browser, ".policies .name")[0]
    box.send_keys(Keys.SPACE)
    hidden = (
        "return document.getElementById('plot-speed').data.filter(t => t.name === arguments[0])[0].visible"
    )
    assert browser.execute_script(hidden, name) is False
    slider = browser.find_element(By.ID, "sla")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert not texts(browser, "#reading")[0].startswith("At 120 tokens/s")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_themes(browser: Any, real: tuple[Any, Path], scheme: str) -> None:
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    shown(browser, real[1], width=400)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    assert browser.execute_script("return document.documentElement.dataset.theme") == scheme
    colours = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map(c => "
        "c.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
    )
    assert abs(colours[0] - colours[1]) > 400, "ink on paper"
    assert (colours[0] < colours[1]) is (scheme == "light")
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") != scheme
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_it_prints(browser: Any, real: tuple[Any, Path]) -> None:
    shown(browser, real[1])
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF")
    assert 3 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 16


@pytest.mark.parametrize("kind", ["answer", "plan"])
def test_names_stay_names(browser: Any, tmp_path: Path, kind: str) -> None:
    document = {"answer": answer, "plan": plan}[kind]()
    document |= {"trace": EVIL, "profile": EVIL, "headline": EVIL, "warnings": [EVIL]}
    document["policies"][-1]["policy"] = document["recommended"] = f"batch-table:{EVIL}"
    {"answer": page.write_answer, "plan": page.write_plan}[kind](document, tmp_path, EVIL)
    shown(browser, tmp_path / "report.html")
    assert browser.title == EVIL
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert browser.get_log("browser") == []
