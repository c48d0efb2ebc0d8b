"""Firefox as it is installed, by the protocol that it speaks itself: WebDriver BiDi, https://w3c.github.io/webdriver-bidi."""

import base64
import json
import re
import shutil
import subprocess
import time

FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")
RIGHT = "\ue014"  # the arrow, as WebDriver numbers it
#: In a page: what its explorers show, as one text.
SHOWN = """[...document.querySelectorAll('.everybyte-explorer svg[role=img], .everybyte-sentence')]
  .map((one) => one.outerHTML).join()"""


class Firefox:
    """A headless Firefox with one page.

    Attributes:
        asked: every address that it asked for. errors: what its console called an error.
    """

    def __init__(self, folder):
        import websocket

        command = [FIREFOX, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        place = next(filter(None, (re.search(r"BiDi listening on (\S+)", line) for line in self.process.stderr)))
        self._line = websocket.create_connection(f"{place[1]}/session", suppress_origin=True, timeout=60)
        self._number, self.asked, self.errors = 0, [], []
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["network.beforeRequestSent", "log.entryAdded"])
        self._context = self.ask("browsingContext.getTree")["contexts"][0]["context"]

    def ask(self, method, **parameters):
        """A command's result; RuntimeError with what Firefox says against it."""
        self._number += 1
        self._line.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._line.recv())
            if said.get("method") == "network.beforeRequestSent":
                self.asked.append(said["params"]["request"]["url"])
            elif said.get("method") == "log.entryAdded" and said["params"]["level"] == "error":
                self.errors.append(said["params"]["text"])
            elif said.get("id") == self._number:
                if said["type"] == "error":
                    raise RuntimeError(f"{method}: {said['message']}")
                return said["result"]

    def open(self, address):
        self.ask("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def evaluate(self, expression):
        """Its value: a text, a number, true, false or nothing. A promise is awaited."""
        told = self.ask("script.evaluate", expression=expression, target={"context": self._context}, awaitPromise=True)
        if told["type"] == "exception":
            raise RuntimeError(told["exceptionDetails"]["text"])
        return told["result"].get("value")

    def press(self, key):
        """A key, by what WebDriver has for it."""
        self._do("key", [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")])

    def click(self, selector):
        """The mouse's first button in the middle of the first element that the selector finds."""
        box = self.evaluate(f"JSON.stringify(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        x, y, width, height = (json.loads(box)[name] for name in ("x", "y", "width", "height"))
        moved = {"type": "pointerMove", "x": round(x + width / 2), "y": round(y + height / 2)}
        actions = [moved, *({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))]
        self._do("pointer", actions)

    def _do(self, device, actions):
        given = [{"type": device, "id": device, "actions": actions}]
        self.ask("input.performActions", context=self._context, actions=given)

    def move(self):
        """Move the first explorer's first slider by a key. Raises TimeoutError where picture and sentence stay."""
        before = self.evaluate(SHOWN)
        self.evaluate("document.querySelector('.everybyte-explorer .noUi-handle').focus()")
        self.press(RIGHT)
        self.wait(f"{json.dumps(before)} !== {SHOWN}")

    def wait(self, condition, seconds=60):
        """Until `condition` holds in the page. Raises TimeoutError, with the condition, after so many seconds."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.1)

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.ask("browsingContext.captureScreenshot", context=self._context)["data"]))

    def close(self):
        self._line.close()
        self.process.terminate()
        self.process.wait(30)
        self.process.stderr.close()
