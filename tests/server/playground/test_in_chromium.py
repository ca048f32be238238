"""The page in a real Chromium: streaming, stop, errors, keys, two tabs, narrow screens, links."""

from __future__ import annotations

import json

import chromium
import pytest
from fakes.playground import LevelsStub, is_plain
from fakes.servers import serving

pytestmark = pytest.mark.skipif(
    chromium.found() is None, reason="no Chromium is installed (HIERSPEC_CHROMIUM names one)"
)

READY = "document.querySelector('#model').textContent === 'stub'"
IDLE = "document.querySelector('#send').ariaDisabled !== 'true'"
DONE = "document.querySelector('#stop').ariaDisabled === 'true'"  # the comparison, too
TOKENS = "[...document.querySelectorAll('.token')]"


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Open the page of a stub; afterwards nothing may have gone wrong in it."""
    opened = []

    def visit(url, ready=READY, **look):
        page = browser.open(url, **look)
        page.wait(ready)
        opened.append(page)
        return page

    yield visit
    for page in opened:
        page.close()
        assert page.problems == []


def send(page, prompt, wait=True):
    page.write("#prompt", prompt)
    page.press("Enter", control=True)
    if wait:
        page.wait(f"{IDLE} && document.querySelectorAll('.token').length > 0")


def choose(page, selector, value):
    change = f"e.{'checked' if isinstance(value, bool) else 'value'} = {json.dumps(value)}"
    page.run(
        f"(() => {{ const e = document.querySelector({selector!r}); {change}; "
        "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_tokens_wear_the_colour_and_the_line_of_their_level(visit):
    with serving(LevelsStub(pieces=3)) as url:
        page = visit(url)
        send(page, "hello")
        classes = page.run(f"{TOKENS}.map((e) => e.className)")
        assert classes == ["token by by-0", "token by by-1", "token by by-target"] * 3
        assert page.run(f"{TOKENS}.map((e) => e.textContent).join('')") == " once upon a" * 3
        legend = page.run("[...document.querySelectorAll('#legend li')].map((e) => e.textContent)")
        assert legend == ["ngram", "small", "target (the target)"]
        looks = page.run(
            f"{TOKENS}.slice(0, 3).map((e) => {{ const s = getComputedStyle(e); "
            "return [s.textDecorationLine, s.textDecorationStyle, s.backgroundColor]; })"
        )
        assert len({tuple(look) for look in looks}) == 3
        # Lines differ as well, so that nobody needs the colours.
        assert len({tuple(look[:2]) for look in looks}) == 3
        assert page.text("#status") == "Done: 9 tokens, ended by the model."


def test_settings_of_a_row_stand_side_by_side(visit):
    with serving(LevelsStub(pieces=1)) as url:
        page = visit(url)
        page.run("document.querySelector('#settings').open = true")
        tops = page.run(
            "['hierarchy', 'max_tokens'].map((name) => "
            "document.querySelector(`[name=${name}]`).getBoundingClientRect())"
            ".map((box) => [box.top, box.bottom])"
        )
        assert tops[0] == tops[1]


def test_bars_and_rounds_count_drafts(visit):
    with serving(LevelsStub(pieces=4)) as url:
        page = visit(url)
        send(page, "hello")
        bars = page.run(
            "[...document.querySelectorAll('[role=meter]')].map((e) => e.ariaValueText)"
        )
        assert bars == ["50 % (4 of 8)", "50 % (4 of 8)"]
        columns = page.run("[...document.querySelectorAll('#rounds li')].map((e) => e.title)")
        assert len(columns) == 4
        assert columns[3] == (
            "Round 4: ngram drafted 2, kept 1, thrown away 1; small drafted 2, kept 1, thrown away "
            "1; 1 token of the target's own; plan ngram 2 > small 2"
        )
        first = "#rounds li:first-child"
        kinds = page.run(f"[...document.querySelectorAll('{first} .cell')].map((e) => e.className)")
        assert kinds == [
            "cell kept fill-0", "cell kept fill-1", "cell own fill-target",
            "cell lost fill-0", "cell lost fill-1",
        ]  # fmt: skip
        # Rows below the line, by level: how many were thrown away, then the plan and the number.
        rows = page.run(f"[...document.querySelectorAll('{first} .row')].map((e) => e.innerText)")
        assert rows == ["1", "1", "A", "1"]
        axis = page.run("[...document.querySelectorAll('#axis .row')].map((e) => e.textContent)")
        assert axis == ["ngram", "small", "plan", "round"]
        key = page.run(
            "[...document.querySelectorAll('#key-of-rounds li')].map((e) => e.innerText)"
        )
        assert [words.replace("\n", " ") for words in key[-2:]] == [
            "A plain: 1 round", "B ngram 2 > small 2: 3 rounds",
        ]  # fmt: skip
        assert "tokens/s" in page.text("#speed-own-text")


def test_a_token_says_who_drafted_and_who_verified_it(visit):
    with serving(LevelsStub(pieces=2)) as url:
        page = visit(url)
        send(page, "hello")
        page.hover(".token")
        page.wait("document.querySelector('#about').textContent.includes('drafted')")
        said = '" once": drafted by ngram, verified by small, then target, round 1.'
        assert page.text("#about") == said
        page.run("document.querySelector('.turns').focus()")
        page.press("ArrowRight")
        assert page.text("#about").startswith('" upon": drafted by small, verified by target')
        page.press("ArrowRight")
        assert page.text("#about") == '" a": written by the target, target, round 1.'
        page.press("ArrowLeft")
        assert page.text("#about").startswith('" upon"')


def test_a_chat_goes_on_and_a_new_one_forgets(visit):
    stub = LevelsStub(pieces=1)
    with serving(stub) as url:
        page = visit(url)
        send(page, "first")
        send(page, "second")
        asked = [[m["content"] for m in b["messages"]] for b in stub.bodies if not is_plain(b)]
        assert asked[1] == ["first", " once upon a", "second"]
        page.click("#clear")
        assert page.run("document.querySelectorAll('.turn').length") == 0
        send(page, "third")
        page.wait(DONE)
        assert [m["content"] for m in stub.bodies[-1]["messages"]] == ["third"]


def test_settings_are_sent_and_empty_ones_are_not(visit):
    stub = LevelsStub(pieces=1)
    with serving(stub) as url:
        page = visit(url)
        choose(page, "[name=mode][value=completion]", True)
        choose(page, "[name=temperature]", "0.5")
        choose(page, "[name=hierarchy]", "other")
        choose(page, "[name=stop]", "END")
        choose(page, "[name=compare]", False)
        send(page, "text")
        body = stub.bodies[0]
        assert body == {
            "prompt": "text", "stream": True, "stream_options": {"include_usage": True},
            "return_levels": True, "max_tokens": 128, "temperature": 0.5, "stop": "END",
            "hierarchy": "other", "model": "default",
        }  # fmt: skip
        assert "Authorization" not in stub.headers[0]


def test_behind_a_key_the_page_asks_for_it(visit):
    stub = LevelsStub(pieces=1, key="sk-1")
    with serving(stub) as url:
        page = visit(url, ready="document.querySelector('#model').textContent.includes('key')")
        assert page.run("document.activeElement.id") == "key"
        assert "drafts nothing" not in page.text("#levels")
        page.write("#prompt", "hello")
        page.press("Enter", control=True)  # in vain, and the prompt stays
        page.wait("document.activeElement.id === 'key'")
        assert page.run("document.querySelectorAll('.turn').length") == 0
        for wrong in ("sk-…1", "sk-0"):  # as lists of keys show it, and another one
            page.run("document.querySelector('#access-problem').textContent = ''")
            page.write("#key", wrong)
            page.press("Enter")
            page.wait("document.querySelector('#access-problem').textContent.includes('not valid')")
            assert page.run("document.querySelector('#error').hidden")
        page.write("#key", "sk-1")
        page.press("Enter")
        page.wait(f"{READY} && document.querySelector('#access').hidden")
        assert page.run("document.activeElement.id") == "prompt"
        page.press("Enter", control=True)
        page.wait(f"{IDLE} && document.querySelectorAll('.token').length > 0")
        assert stub.headers[0]["Authorization"] == "Bearer sk-1"
        page.click("#share")
        page.wait("document.querySelector('#shared').textContent.startsWith('The link')")
        assert "sk-1" not in page.run("location.href")
        stub.key = "sk-2"  # it is another one since
        send(page, "again", wait=False)
        page.wait("document.activeElement.id === 'key'")
        assert page.run("document.querySelector('#prompt').value") == "again"
        page.write("#key", "sk-2")
        page.press("Enter")
        page.wait("document.activeElement.id === 'prompt'")
        page.press("Enter", control=True)
        page.wait(f"{IDLE} && document.querySelectorAll('.turn').length === 4")
        page.problems.clear()  # the browser's own notes on status 401


def test_stop_reaches_the_server_and_keeps_the_text(visit):
    stub = LevelsStub(pieces=1000, pause=0.02)
    with serving(stub) as url:
        page = visit(url)
        for i, stop in enumerate((lambda: page.click("#stop"), lambda: page.press("Escape")), 1):
            page.click("#clear")
            send(page, "hello", wait=False)
            page.wait("document.querySelectorAll('.token').length > 3")
            stop()
            page.wait(IDLE)
            assert page.text("#status").startswith("Stopped after ")
            assert page.run("document.activeElement.id") in ("stop", "prompt")  # no focus is lost
            assert page.run("document.querySelectorAll('.token').length") > 3
            page.wait("true")
            for _ in range(100):
                if stub.cancelled == i:
                    break
                page.run("new Promise((done) => setTimeout(done, 20))")
            assert (stub.cancelled, stub.live) == (i, 0)


def test_errors_are_said_as_text_and_the_next_request_works(visit):
    stub = LevelsStub(pieces=3, refuse=frozenset({"bad"}), break_off=frozenset({"cut"}))
    with serving(stub) as url:
        page = visit(url)
        page.press("Enter", control=True)
        assert page.text("#error") == "Type a prompt first."
        send(page, "bad", wait=False)
        page.wait(f"{IDLE} && document.querySelector('#error').textContent.includes('HTTP')")
        assert page.text("#error") == "prompt <b>too long</b> (HTTP 400)"
        assert page.problems.pop().startswith("Failed to load resource")  # the browser's own note
        send(page, "cut", wait=False)
        page.wait("document.querySelector('#error').textContent.includes('before it was complete')")
        page.wait(IDLE)
        assert page.run("document.querySelector('#prompt').value") == "cut"
        assert page.run("document.querySelectorAll('.turn').length") == 2  # not those of "bad"
        send(page, "markup")
        assert page.run("document.querySelectorAll('.turn').length") == 2
        choose(page, "[name=max_tokens]", "0")
        page.run("document.querySelector('#settings').open = false")
        page.press("Enter", control=True)
        assert page.run("document.querySelector('#settings').open")  # where the mistake is
        assert page.run("document.activeElement.name") == "max_tokens"
        assert page.run("document.querySelector('#error').hidden")
        assert "<img src=x" in page.text("#turns")
        assert page.run("document.querySelectorAll('#turns img').length") == 0


def test_a_server_that_is_gone_is_said_so(visit):
    with serving(LevelsStub()) as url:
        page = visit(url)
    send(page, "hello", wait=False)
    page.wait("document.querySelector('#error').textContent.includes('The connection broke')")
    page.wait(IDLE)
    page.problems.clear()  # the browser's own note on the refused connection


def test_two_tabs_at_once_do_not_mix(visit):
    stub = LevelsStub(pieces=30, pause=0.02)
    with serving(stub) as url:
        pages = [visit(url), visit(url)]
        for page, prompt in zip(pages, ("one", "two"), strict=True):
            send(page, prompt, wait=False)
        pages[0].wait("document.querySelectorAll('.token').length > 3")
        pages[0].press("Escape")
        for page in pages:
            page.wait(IDLE)
        assert pages[0].text("#status").startswith("Stopped")
        assert pages[1].text("#status") == "Done: 90 tokens, ended by the model."
        assert pages[1].run("document.querySelectorAll('.token').length") == 90
        assert ["one" in page.text("#turns") for page in pages] == [True, False]


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_narrow_screen(visit, dark):
    with serving(LevelsStub(pieces=40)) as url:
        page = visit(url, width=320, height=640, dark=dark)
        page.run("document.querySelector('#settings').open = true")
        send(page, "word " * 60)
        assert page.run("document.documentElement.scrollWidth") <= 320
        small = page.run(
            "[...document.querySelectorAll('button, input:not([type=radio]):not([type=checkbox])')]"
            ".filter((e) => e.getBoundingClientRect().right > 320).length"
        )
        assert small == 0


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(visit, dark):
    """WCAG 2.2, 1.4.3: at least 4.5 to 1, tints included."""
    with serving(LevelsStub(pieces=1)) as url:
        page = visit(url, dark=dark)
        page.run(
            "for (let i = 0; i < 6; i++) { const e = document.createElement('span'); "
            "e.className = `by by-${i}`; e.textContent = 'x'; "
            "document.querySelector('#turns').append(e); }"
        )
        ratios = page.run(CONTRAST)
    assert len(ratios) > 15
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const over = (below, colour) => {
    canvas.fillStyle = `rgb(${below.join(",")})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((c) => c / 255)
    .map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = (e) => over(e.parentElement ? ground(e.parentElement) : [255, 255, 255],
    getComputedStyle(e).backgroundColor);
  const out = {};
  for (const e of document.querySelectorAll("body *:not(script):not(style):not(option)")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.ariaDisabled === "true") continue;
    const below = ground(e), a = light(over(below, getComputedStyle(e).color)), b = light(below);
    out[`${e.tagName}.${e.className}#${e.id}`] = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  }
  return out;
})()"""


def test_the_link_holds_settings_and_prompt(visit):
    with serving(LevelsStub(pieces=1)) as url:
        page = visit(url)
        choose(page, "[name=mode][value=completion]", True)
        choose(page, "[name=temperature]", "0.7")
        choose(page, "[name=hierarchy]", "other")
        page.write("#prompt", "a & b\n= ü")
        page.click("#share")
        page.wait("document.querySelector('#shared').textContent.startsWith('The link')")
        link = page.run("location.href")
        other = visit(link)
        form = "document.querySelector('#form').elements"
        assert other.run(f"{form}.prompt.value") == "a & b\n= ü"
        assert other.run(f"{form}.mode.value") == "completion"
        assert other.run(f"{form}.temperature.value") == "0.7"
        assert other.run(f"{form}.hierarchy.value") == "other"
        assert other.text("#prompt-label") == "Text to continue"


def test_the_link_holds_the_message_that_a_chat_began_with(visit):
    with serving(LevelsStub(pieces=1)) as url:
        page = visit(url)
        send(page, "hello")
        page.click("#share")
        page.wait("document.querySelector('#shared').textContent.startsWith('The link')")
        assert page.run("location.hash") == "#prompt=hello"


def test_plain_decoding_stands_beside(visit):
    stub = LevelsStub(pieces=5, pause=0.01)
    with serving(stub) as url:
        page = visit(url)
        page.write("#prompt", "hello")
        page.click("#send")
        page.wait("document.querySelector('#verdict').textContent.includes('×')")
        assert "× plain decoding. The text is the same." in page.text("#verdict")
        assert "tokens/s" in page.text("#speed-plain-text")
        assert [body.get("speculative") for body in stub.bodies] == [None, False]
        assert page.run("document.querySelectorAll('.token').length") == 15
        ratio = page.run(
            "document.querySelector('#speed-own').value "
            "/ document.querySelector('#speed-plain').value"
        )
        assert page.text("#verdict").startswith(f"{ratio:.2f} ×")
        # The next prompt need not wait for it.
        stub.pause, stub.pieces = 0.05, 20
        send(page, "long", wait=False)
        page.wait("document.querySelector('#verdict').textContent.includes('plainly')")
        send(page, "next", wait=False)
        page.wait("document.querySelector('#turns').textContent.includes('next')")
        assert page.text("#speed-plain-text") == "after the answer"
        page.press("Escape")


def test_few_tokens_are_no_comparison(visit):
    with serving(LevelsStub(pieces=2)) as url:
        page = visit(url)
        send(page, "hello")
        page.wait("document.querySelector('#verdict').textContent.startsWith('Too short')")


def test_a_model_without_a_chat_format_continues_texts(visit):
    stub = LevelsStub(pieces=1)
    stub.chat = False
    with serving(stub) as url:
        page = visit(url)
        assert page.text("#prompt-label") == "Text to continue"
        send(page, "hello")
        assert stub.bodies[0]["prompt"] == "hello"


def test_everything_has_a_name_for_those_who_do_not_see_it(visit):
    with serving(LevelsStub(pieces=2)) as url:
        page = visit(url)
        send(page, "hello")
        page.run("document.querySelector('#settings').open = true")
        page.send("Accessibility.enable")
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    wanted = {"textbox", "button", "spinbutton", "radio", "checkbox", "combobox", "meter", "log"}
    names = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if node.get("role", {}).get("value") in wanted
    ]
    assert len(names) > 15
    assert [role for role, name in names if not name] == []
    assert ("meter", "drafts of ngram that were kept") in names
