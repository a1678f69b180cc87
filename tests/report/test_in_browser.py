"""The page of a run in a real browser: desktop and telephone, light and dark."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray.report import page
from dpaudit_ray.report.tables import Run
from tests.report.handed import LANDSCAPE, played, sweep

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
WIDTHS = {"desktop": 1280, "telephone": 390}
SCHEMES = {"dark": 0, "light": 1}  # numbers of Chromium's setting
# What a reader does, and what is there then. The page's own policy lets no other script run, so the
# copy that is measured here allows this one by its digest, and nothing else.
SCRIPT = """
const seen = { saved: [], refused: [] };
addEventListener("securitypolicyviolation", (event) => seen.refused.push(event.blockedURI));
const createObjectURL = URL.createObjectURL;
const Original = Blob;
window.Blob = class extends Original {
  constructor(parts, options) { super(parts, options); this.parts = parts; }
};
URL.createObjectURL = (blob) => {
  seen.saved.push([blob.type, String(blob.parts ?? "").slice(0, 200)]);
  return createObjectURL.call(URL, blob);
};
HTMLCanvasElement.prototype.toBlob = function () {  // a canvas of foreign content would throw
  seen.saved.push(["image/png", this.toDataURL().slice(0, 200)]);
};
HTMLAnchorElement.prototype.click = () => {};  // which would save the file
const root = document.documentElement;
seen.width = innerWidth;
seen.overflow = root.scrollWidth - root.clientWidth;
seen.paper = getComputedStyle(document.body).backgroundColor;
seen.cells = document.querySelectorAll(".cell").length;
const map = document.getElementById("map");
const top_of = (element) => element.getBoundingClientRect().top;
seen.map_is_first = !map || top_of(map) < top_of(document.getElementById("overview"));
seen.words = document.querySelectorAll("abbr[title]").length;
document.getElementById("copy").click();
seen.selected = String(getSelection());
const facet = document.querySelector(".facet");
if (facet) {
  seen.verdict = facet.value;
  facet.click();
  seen.rows = document.querySelectorAll("#overview tbody tr:not([hidden])").length;
  seen.dimmed = document.querySelectorAll(".cell.out").length;
  document.querySelector(".cell").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  location.hash = document.querySelector(".cell").getAttribute("href");
}
const svgs = () => Array.from(document.querySelectorAll("figure svg"));
seen.charts = svgs().length;
const plot = document.querySelector(".charts svg") ?? svgs()[0];
const box = plot.getBoundingClientRect();
const pointed = { clientX: box.left + 20, clientY: box.top + 24 };
plot.dispatchEvent(new PointerEvent("pointermove", pointed));
seen.tip = document.querySelector(".tip").textContent;
for (const button of document.querySelector("figure .save").children) button.click();
document.getElementById("dark").click();
seen.toggled = getComputedStyle(document.body).backgroundColor;
setTimeout(() => {
  seen.chosen = document.querySelectorAll("#chosen svg").length;
  const shown = document.createElement("pre");
  shown.id = "seen";
  shown.textContent = JSON.stringify(seen);
  document.body.append(shown);
}, 800);
"""


def seen(html: str, folder: Path, width: int, scheme: int) -> dict[str, Any]:
    """What the browser measures on the page in a frame of this width."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    page_itself = html.replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    (folder / "page.html").write_text(
        page_itself.replace("</body>", f"<script>{SCRIPT}</script></body>")
    )
    # A window has at least 500 pixels; a frame may be as narrow as a telephone.
    (folder / "frame.html").write_text(
        f'<body style="margin:0"><iframe src="page.html" width="{width}" height="900" '
        'style="border:0"></iframe><script>const waiting = setInterval(() => { const seen = '
        'document.querySelector("iframe").contentDocument.getElementById("seen"); if (seen) { '
        "clearInterval(waiting); document.body.append(seen); } }, 100);</script>"
    )
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=15000",
         f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom",
         (folder / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    content = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert content, done.stdout[-2000:]
    return json.loads(unescape(content[1]))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.open(str(played(sweep(), tmp_path_factory.mktemp("few"), 12)))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    grid = {"mechanism.noise_multiplier": [1.0, 1.5, 2.0], "mechanism.batch_size": [*range(1, 16)]}
    audit = {"trials": 20, "delta": 1e-5, "record_every": 3, "estimators": ["accuracy"]}
    raw = sweep("many", mechanism=LANDSCAPE, grid=grid, audit=audit, resources={"pack_size": 20})
    return Run.open(str(played(raw, tmp_path_factory.mktemp("many"), 45)))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", WIDTHS)
def test_page_of_many_audits(many, device, scheme, tmp_path):
    html = Path(page.write(many)).read_text()
    shown = seen(html, tmp_path, WIDTHS[device], SCHEMES[scheme])
    assert shown["width"] == WIDTHS[device]
    assert shown["overflow"] == 0  # what is wider scrolls in its box
    assert shown["cells"] == 45
    assert shown["map_is_first"]
    assert shown["words"] >= 5
    assert shown["selected"].split(":")[0] in ("VIOLATION", "CONSISTENT", "INCONCLUSIVE")
    assert shown["dimmed"] + shown["rows"] == 45
    assert shown["dimmed"] > 0  # those of the verdict that was unchecked
    assert shown["chosen"] == 2
    is_dark = {"rgb(255, 255, 255)": False, "rgb(22, 24, 27)": True}
    assert is_dark[shown["paper"]] == (scheme == "dark")
    assert is_dark[shown["toggled"]] == (scheme == "light")
    assert sorted(kind for kind, _ in shown["saved"]) == ["image/png", "image/svg+xml", "text/csv"]
    texts = dict(shown["saved"])
    assert texts["image/svg+xml"].startswith("<svg")
    assert texts["image/png"].startswith("data:image/png;base64,")
    assert texts["text/csv"].startswith("audit,batch_size,noise_multiplier,verdict,measured,ratio")
    assert shown["refused"] == []


@pytest.mark.parametrize("device", WIDTHS)
def test_page_of_few_audits(few, device, tmp_path):
    html = Path(page.write(few)).read_text()
    shown = seen(html, tmp_path, WIDTHS[device], SCHEMES["dark"])
    assert shown["overflow"] == 0
    assert shown["selected"].startswith(("VIOLATION", "CONSISTENT", "INCONCLUSIVE"))
    assert shown["words"] >= 7
    assert shown["charts"] >= 1 + 2 * 3  # the run's bars, and three of each audit
    assert "ε ≥" in shown["tip"]
    csv = dict(shown["saved"])["text/csv"]
    assert csv.startswith("audit,lower bound,claim,assumes,repetitions\ngradient=threshold,")
    assert shown["refused"] == []


def test_page_loads_nothing(many):
    html = Path(page.write(many)).read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)
    assert "default-src 'none'" in html
