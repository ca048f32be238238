"""The playground's pictures in docs/pictures, taken of a running service:

python tests/server/playground/pictures.py http://127.0.0.1:8000 docs/pictures
"""

from __future__ import annotations

import sys
from pathlib import Path

import chromium
from PIL import Image

LOOKS = {
    "light": {"height": 1200},
    "dark": {"height": 1200, "dark": True},
}
PROMPT = 'def quicksort(items):\n    """Sort a list of numbers without changing it."""\n'


def take(url, folder):
    with chromium.Chromium() as browser:
        for name, look in LOOKS.items():
            page = browser.open(f"{url}/#mode=completion&max_tokens=72", **look)
            page.wait("!/connecting/.test(document.querySelector('#model').textContent)")
            if name == "dark":
                page.click("[name=marks]")
            page.run("document.querySelector('#settings').open = false")
            page.write("#prompt", PROMPT)
            page.press("Enter", control=True)
            page.wait("document.querySelector('#verdict').textContent.includes('×')", seconds=240)
            page.hover(".token:nth-of-type(9)")
            page.run("window.scrollTo(0, 0)")
            path = Path(folder) / f"playground-{name}.png"
            page.picture(path)
            Image.open(path).convert("RGB").quantize(64, dither=0).save(path, optimize=True)
            assert page.problems == [], page.problems


if __name__ == "__main__":
    take(*sys.argv[1:])
