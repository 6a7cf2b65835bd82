"""Drives headless Chromium with the DevTools protocol over a pipe; uses only the standard library.

    with Chromium() as browser:
        page = browser.open("file:///tmp/report.html", width=390, height=800, dark=True)
        page.evaluate("document.title")
        page.press("Tab")
        page.screenshot("page.png")
        page.messages        # console messages of level warning or above, and exceptions
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 30.0


def find_chromium():
    """Returns the path of the browser: KVSIM_CHROMIUM, else the first of the usual names found; None if there is none."""
    given = os.environ.get("KVSIM_CHROMIUM")
    if given:
        return given
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Chromium:
    """A browser with a temporary profile, closed at the end of the context."""

    def __enter__(self):
        self._home = tempfile.mkdtemp(prefix="kvsim-chromium-")
        command = [
            find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-extensions",
            "--disable-background-networking", f"--user-data-dir={self._home}", "--remote-debugging-pipe",
            "about:blank",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        shell = ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh", *command]
        self._process = subprocess.Popen(shell, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        self._buffer = b""
        self._id = 0
        self._pages = {}
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._home, ignore_errors=True)

    def _message(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("chromium did not answer")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("chromium ended")
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _dispatch(self, message):
        page = self._pages.get(message.get("sessionId"))
        if page is not None and "method" in message:
            page.on_event(message["method"], message.get("params", {}))

    def call(self, method, params=None, session=None):
        """Returns the result of one command. Errors: RuntimeError with the browser's message."""
        self._id += 1
        mine = self._id
        message = {"id": mine, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._message(deadline)
            if answer.get("id") != mine:
                self._dispatch(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error'].get('message')}")
            return answer["result"]

    def open(self, url, width=1280, height=900, dark=False, before=None):
        """Opens a tab at `url`; `before` is a script that runs before the page's scripts."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, target, session)
        self._pages[session] = page
        page.call("Page.enable")
        page.call("Runtime.enable")
        page.call("Log.enable")
        page.call("Network.enable")
        page.size(width, height)
        page.dark(dark)
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", {"source": before})
        page.go(url)
        return page


class Page:
    """A browser tab."""

    def __init__(self, browser, target, session):
        self._browser = browser
        self._target = target
        self._session = session
        self.messages = []
        self.requests = []  # requested URLs
        self._loaded = False

    def call(self, method, params=None):
        return self._browser.call(method, params, self._session)

    def on_event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.messages.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.messages.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia",
                  {"features": [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]})

    def go(self, url):
        self._loaded = False
        self.call("Page.navigate", {"url": url})
        deadline = time.monotonic() + TIMEOUT_S
        while not self._loaded:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} did not load")
            self.evaluate("0")
            time.sleep(0.02)
        self.settle()

    def settle(self):
        """Waits two frames, after which observers and drawing have run."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, expression):
        """Returns the value of an expression; promises are awaited. Errors: RuntimeError if it throws an exception."""
        answer = self.call("Runtime.evaluate",
                           {"expression": expression, "awaitPromise": True, "returnByValue": True})
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def press(self, key, code=None):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37, "ArrowUp": 38, "ArrowDown": 40}
        number = codes.get(key, 0)
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        down = {"type": "keyDown", "key": key, "code": code or key, "windowsVirtualKeyCode": number}
        if text:
            down["text"] = text
        self.call("Input.dispatchKeyEvent", down)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", "key": key, "code": code or key, "windowsVirtualKeyCode": number})

    def hover(self, x, y):
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x - 3, "y": y - 2})
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
        self.settle()

    def screenshot(self, path, whole=True):
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"captureBeyondViewport": True,
                    "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        data = self.call("Page.captureScreenshot", {"format": "png", **clip})["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def pdf(self, path):
        data = self.call("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def close(self):
        self._browser.call("Target.closeTarget", {"targetId": self._target})
