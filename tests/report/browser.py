"""A headless Chromium, spoken to over a pipe in the DevTools protocol: JSON messages that end in a NUL byte."""

import base64
import collections
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
SECONDS = 120


class Browser:
    def __init__(self):
        path = next(filter(None, map(shutil.which, NAMES)), None)
        if not path:
            raise SystemExit("error: no Chromium: cmake/install_dependencies.sh --browser installs one")
        self._profile = tempfile.mkdtemp()
        to_browser, from_browser = os.pipe(), os.pipe()
        # The browser wants the numbers 3 and 4, which may be those of the other pipe; beyond ten nothing is taken.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]
        command = [path, "--headless", "--remote-debugging-pipe", f"--user-data-dir={self._profile}",
                   "--no-first-run", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium's own does not work for root
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *command],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (*ends, to_browser[0], from_browser[1]):
            os.close(fd)
        self._write, self._read = to_browser[1], from_browser[0]
        self._rest, self._events, self._number, self._session = b"", collections.deque(), 0, None
        self._target = None

    def close(self):
        try:
            self._call("Browser.close", session=None)
            self._process.wait(SECONDS)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise OSError("the browser has ended")
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _call(self, method, session="the page's", **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data):]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._events.append(answer)

    def open(self, path, fragment="", width=1280, height=900, dark=False):
        """Loads a page in a new tab. What goes wrong in it is collected in problems()."""
        before, target = self._target, self._call("Target.createTarget", session=None, url="about:blank")["targetId"]
        if before:  # after the new one, as a browser without any tab may end
            self._call("Target.closeTarget", session=None, targetId=before)
        self._target = target
        self._session = self._call("Target.attachToTarget", session=None, targetId=target, flatten=True)["sessionId"]
        self._events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height)
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)  # a tab without focus may get its keys late
        self._call("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._url = f"file://{os.path.abspath(path)}"
        self._call("Page.navigate", url=self._url + (f"#{fragment}" if fragment else ""))
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive())

    def resize(self, width, height=900):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def problems(self):
        """Errors and warnings of the console, exceptions, and whatever was asked of a network."""
        self.run("1")  # all events before this have arrived
        found = []
        for event in self._events:
            method, said = event["method"], event.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(f"console: {[part.get('value') for part in said['args']]}")
            elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {said['entry']['text']}")
            elif method == "Page.javascriptDialogOpening":
                found.append(f"dialog: {said['message']}")
            elif method == "Network.requestWillBeSent":
                url = said["request"]["url"].split("#")[0]
                if url != self._url and not url.startswith("data:"):
                    found.append(f"asks for {url}")
        return found

    def run(self, script):
        """The value of an expression; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def key(self, name, code=0):
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                       **({"text": "\r"} if name == "Enter" and kind == "keyDown" else {}))

    def type(self, text):
        self._call("Input.insertText", text=text)

    def move(self, x, y):
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, whole=True):
        picture = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def pdf(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"]))
