"""The page of `--report` in a real browser: charts, search, sorting, themes; no messages on the console."""

import shutil
from pathlib import Path

import pytest
from support import ROOT, mqq

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("there is no Chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    folder = tmp_path_factory.mktemp("report")
    mqq("calibrate", ROOT / "fixtures/digits_cnn.onnx", "-b", "tensorrt", "--data", ROOT / "calib_data/calib",
        "--preprocess", "half", "--keep-float", "1", "--out-dir", folder, "--report", folder / "report.html")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        messages = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or messages.append(request.url))
        page.goto((folder / "report.html").as_uri())
        yield page
        assert messages == []
        browser.close()


def cells(page, section, column):
    rows = page.locator(f"#{section} tbody tr:visible")
    return [row.locator("td").nth(column).inner_text() for row in rows.all()]


def test_charts_are_drawn_when_they_come_into_view(page):
    for section in ("errors", "trade-off", "ranges"):
        figure = page.locator(f"#{section} > figure")
        figure.scroll_into_view_if_needed()
        figure.locator("svg circle").first.wait_for()
        assert figure.locator("svg circle").count() >= 2, section


def test_points_above_the_top_of_a_chart_are_drawn_there_with_their_figure(page):
    heights = page.evaluate("""() => {
      const figure = document.body.appendChild(document.createElement("figure"));
      const points = [10, 60, 190].map((y, x) => ({ x, y, name: "n" }));
      drawChart(figure, { mark: "line", x: "x", y: "SQNR (dB)", y_log: false, y_top: 60, series: [{ name: "s", points }] });
      const heights = [...figure.querySelectorAll("circle")].map((circle) => circle.getAttribute("cy"));
      figure.remove();
      return heights;
    }""")
    assert heights[0] != heights[1] == heights[2]


def test_spans_reach_from_the_lowest_to_the_highest_scale(page):
    figure = page.locator("#weight-scales figure")
    figure.scroll_into_view_if_needed()
    figure.locator("g[aria-label=rule] line").first.wait_for(state="attached")
    assert figure.locator("g[aria-label=rule] line").count() == len([axis for axis in cells(page, "weights", 3) if int(axis) > 1])


def test_the_graph_has_all_nodes_and_colors_them_by_error(page):
    figure = page.locator("#graph figure")
    figure.scroll_into_view_if_needed()
    figure.locator("rect").first.wait_for()
    assert figure.locator("rect").count() == len(cells(page, "nodes", 1))
    assert figure.locator("rect.float").count() >= 1 and figure.locator("rect.integer").count() >= 8
    legend = figure.locator(".legend > div")
    assert legend.text_content() == "integerfusedfloat"
    figure.get_by_label("Color of nodes").select_option("error")
    assert figure.locator("rect").first.get_attribute("style").startswith("fill: rgb")
    legend_of_errors = legend.text_content()
    assert all(part in legend_of_errors for part in ("SQNR (dB)", "30", "not measured")) and "integer" not in legend_of_errors
    figure.get_by_label("Color of nodes").select_option("type")
    assert legend.text_content() == "integerfusedfloat"


def test_charts_and_the_graph_are_whole(page):
    for section in ("errors", "ranges", "histograms"):
        figure = page.locator(f"#{section} > figure")
        figure.scroll_into_view_if_needed()
        label = figure.locator("g[aria-label='x-axis label'] text")
        label.wait_for()
        below = label.evaluate("label => label.getBoundingClientRect().bottom - label.closest('svg').getBoundingClientRect().bottom")
        assert below <= 0, section
    graph = page.locator("#graph figure")
    graph.scroll_into_view_if_needed()
    graph.locator("rect").first.wait_for()
    assert graph.evaluate("figure => figure.scrollWidth - figure.clientWidth") <= 0


def test_a_point_tells_its_figure_with_the_unit(page):
    figure = page.locator("#errors > figure")
    figure.scroll_into_view_if_needed()
    figure.locator("svg circle").first.wait_for()
    figure.locator("svg circle").nth(3).hover(force=True)
    tip = figure.locator("g[aria-label=tip]")
    tip.locator("text").wait_for()
    assert tip.text_content().endswith(" dB")


def test_histograms_show_a_tensor_with_the_ranges_of_all_observers(page):
    figure = page.locator("#histograms > figure")
    figure.scroll_into_view_if_needed()
    bars = figure.locator("g[aria-label=rect] rect")
    bars.first.wait_for()
    tensor, names = figure.get_by_label("Tensor"), cells(page, "activations", 0)
    assert bars.count() == 24 and sorted(tensor.locator("option").all_inner_texts()) == sorted(names)
    lines = figure.locator("g[aria-label=rule] line")
    assert lines.count() == 2 * 6
    widths = [float(line.get_attribute("stroke-width")) for line in lines.all()]
    assert min(widths[:2]) >= 3 * max(widths[2:]), "the range that is used shows under one that lies on it"
    drawn = lambda: [bar.get_attribute("height") for bar in bars.all()]
    before = drawn()
    tensor.select_option(label="input" if tensor.locator("option").first.inner_text() != "input" else names[1])
    assert drawn() != before


def test_search_keeps_the_rows_with_all_words(page):
    search = page.locator("#nodes").get_by_label("Search")
    n_rows = len(cells(page, "nodes", 1))
    search.fill("conv integer")
    operators = cells(page, "nodes", 2)
    assert operators and set(operators) == {"Conv"} and len(operators) < n_rows
    assert page.locator("#nodes [role=status]").inner_text() == f"{len(operators)} of {n_rows} rows"
    search.fill("")
    assert len(cells(page, "nodes", 1)) == n_rows


def test_a_click_on_a_title_sorts_by_number_and_back(page):
    title = page.locator("#nodes").get_by_role("button", name="SQNR (dB)")
    for descending in (False, True):
        title.click()
        page.wait_for_timeout(50)
        values = [float(text) for text in cells(page, "nodes", 4) if text]
        assert values == sorted(values, reverse=descending)
    page.locator("#nodes").get_by_role("button", name="Position").press("Enter")
    page.wait_for_timeout(50)
    assert cells(page, "nodes", 0) == [str(k) for k in range(len(cells(page, "nodes", 0)))]


def test_titles_that_sort_have_a_sign_and_short_tables_show_all_rows(page):
    sign = page.locator("#nodes th button").last.evaluate("button => getComputedStyle(button, '::after').content")
    assert sign == '"↕"'
    height = lambda section: page.locator(f"#{section} .scroll").evaluate("table => getComputedStyle(table).maxHeight")
    assert len(cells(page, "methods", 0)) < 20 <= len(cells(page, "nodes", 0))
    assert (height("methods"), height("nodes")) == ("none", "512px")
    page.emulate_media(media="print")
    assert height("nodes") == "none"
    page.emulate_media(media="screen")


def test_the_theme_changes(page):
    back = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    before = back()
    page.get_by_role("button", name="Light or dark").click()
    assert back() != before
    page.get_by_role("button", name="Light or dark").click()
    assert back() == before


def test_a_phone_needs_no_sideways_scrolling_of_the_page(page):
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.set_viewport_size({"width": 1200, "height": 900})


def test_the_details_of_methods_are_in_view(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    table = page.locator("#methods .scroll")
    assert table.evaluate("table => table.scrollWidth - table.clientWidth") <= 0
    page.set_viewport_size({"width": 1200, "height": 900})
