"""The report in a real browser: drawn, readable at the width of a desk and of a phone, and by itself."""

from pathlib import Path

import pytest

from podracer.analysis import report
from podracer.analysis.curves import group, read_runs
from podracer.analysis.plotting import Style
from tests.analysis.folders import write_run
from tests.browser import Browser, find_browser

WIDTHS = (1280, 390)
_LEAST_PIXELS = 12

_LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of four groups of long names in four environments."""
    folder = tmp_path_factory.mktemp("runs")
    for index, env in enumerate(("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Breakout-MinAtar")):
        for seed in range(2):
            for agent in ("ppo", "impala"):
                for runner in ("anakin", "sebulba"):
                    points = [(100_000 * k, float(k * (seed + index + 1))) for k in range(1, 8)]
                    run = folder / f"{agent}-{runner}-{env}-{seed}"
                    write_run(run, agent=agent, runner=runner, env=env, seed=seed, points=points, learning_rate=3e-4)
    groups = group(read_runs([folder]), ["agent.name", "runner.name", "agent.learning_rate"])
    report.write(groups, folder / "out", Style(usd_per_hour=3.6, resamples=100), threshold=5.0)
    return folder / "out" / "report.html"


def faults(looks: dict, requests: list[str], complaints: list[str]) -> list[str]:
    """What is wrong with a page, in words."""
    found = [f"asks for {url}" for url in requests] + [f"complains: {text}" for text in complaints]
    found += ["has no chart"] if not looks["charts"] + looks["images"] else []
    found += ["has an empty chart" for area, curves in looks["charts"] if not (area > 10_000 and curves)]
    found += ["has an image that is not there" for width in looks["images"] if not width]
    if looks["pageWidth"] > looks["screenWidth"] or looks["beyond"]:
        found.append(f"is {looks['pageWidth']} px wide on {looks['screenWidth']} px: {looks['beyond']}")
    found += [f"has letters of {size:.1f} px: {text}" for text, size in looks["letters"] if size < _LEAST_PIXELS]
    found += [f"has a contrast of {ratio:.1f}: {text}" for text, ratio in looks["contrasts"] if ratio < 4.5]
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_is_drawn_and_readable(browser, page, tmp_path, width, dark):
    browser.open(page, width, dark=dark)
    looks = browser.evaluate(_LOOKS)
    assert faults(looks, browser.requests, browser.complaints) == []
    assert len(looks["charts"]) == 3 * 4  # over steps, seconds and dollars, a panel an environment
    assert all(curves >= 4 for _, curves in looks["charts"])
    assert len(looks["boxes"]) == 2 * 4
    # On a phone tables are wider than the screen, and scroll within their boxes, beside the names of the groups.
    assert (max(whole - seen for seen, whole, _ in looks["boxes"]) > 0) == (width == 390)
    assert all(names < 0.5 * seen for seen, _, names in looks["boxes"])
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


_BROKEN = {
    "asks for http://127.0.0.1:9/chart.png": '<img src="http://127.0.0.1:9/chart.png" alt="">',
    "has an image that is not there": '<img src="data:image/png;base64,AAAA" alt="">',
    "has no chart": "<p>Nothing.</p>",
    "has an empty chart": '<svg width="300" height="200"></svg>',
    "complains: no": '<script>console.error("no")</script>',
    "complains: Uncaught": "<script>nothing.there</script>",
    "px wide on 390 px": '<div style="width: 1000px">wide</div>',
    "has letters of 6.0 px": '<svg width="99" viewBox="0 0 198 9"><text font-size="12">a</text></svg>',
    "has a contrast of": '<p style="color: #bbb">pale</p>',
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_page_that_is_broken_is_found_out(browser, tmp_path, fault):
    path = tmp_path / "broken.html"
    style = "<style>body { font: 16px sans-serif }</style>"
    head = f'<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">{style}'
    path.write_text(f"{head}<body>{_BROKEN[fault]}</body>", encoding="utf-8")
    browser.open(path, 390)
    found = faults(browser.evaluate(_LOOKS), browser.requests, browser.complaints)
    assert any(fault in text for text in found), found


def test_a_missing_browser_is_told_of_and_fails_continuous_integration(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        find_browser()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_browser()
