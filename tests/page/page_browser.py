"""A headless Chromium that shows the page of flow ui. A program that imports this is skipped (77) without python3-selenium.

The script of axe is that of the wheel axe-playwright-python, which is installed next to the build, or the file that AXE_SCRIPT names.
"""
import os
import re
import subprocess
import sys

SYSTEM_PYTHON = "/usr/bin/python3"  # whose packages are Debian's
try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    if os.path.exists(SYSTEM_PYTHON) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("skipped: python3-selenium is not installed")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402
from page_place import BIG, SCRIPT, WAITS, PagePlace  # noqa: E402
from place import OPTIONS  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from packages import python_with_packages  # noqa: E402

STATES = ("succeeded", "failed", "running", "waiting", "ready", "pending", "skipped", "cancelled", "cached", "ignored")


def axe_script():
    """(text, reason): the script of axe, or None and why there is none."""
    path = os.environ.get("AXE_SCRIPT")
    if not path:
        find = "import importlib.util as u; print(u.find_spec('axe_playwright_python').submodule_search_locations[0])"
        build = os.path.dirname(os.path.dirname(OPTIONS.flow))
        python, why = python_with_packages(build, "page-python", ["--no-deps", "axe-playwright-python"], find)
        if python is None:
            return None, why
        path = os.path.join(subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip(), "axe.min.js")
    with open(path) as file:
        return file.read(), ""


def counts_in(text):
    """{"succeeded": 1990} of "1,990 succeeded · 10 failed"."""
    return {state: int(number.replace(",", "")) for number, state in re.findall(r"([\d,]+) (\w+)", text) if state in STATES}


def set_counts(run):
    return {state: number for state, number in run["counts"].items() if number > 0}


class Browsing(PagePlace):
    def setUp(self):
        super().setUp()
        self.write("mixed.lua", SCRIPT)
        self.write("big.lua", BIG)
        self.write("waits.lua", WAITS)

    def browse(self, width=1200, dark=False):
        self.driver = browser.open_tab(self, width, dark)
        self.open_page()
        self.driver.get(self.link)
        self.wait("connected", lambda: self.text("#link").startswith("live"))

    def visit(self, path):
        self.driver.execute_script("location.hash = arguments[0]", path)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector):
        """A live view may replace the element before the click reaches it."""
        def clicked():
            try:
                self.driver.find_element(By.CSS_SELECTOR, selector).click()
            except StaleElementReferenceException:
                return False
            return True
        self.wait(selector + " is clicked", clicked)

    def texts(self, selector):
        """In one step: live views replace their elements."""
        return self.driver.execute_script("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector)

    def text(self, selector):
        return (self.texts(selector) or [""])[0]

    def wait(self, what, holds):
        self.until(what, holds)

    def is_quiet(self):
        """The browser has reported no error: no exception, no violation of the policy, no failed request."""
        self.assertEqual([line["message"] for line in self.driver.get_log("browser")], [])

    def focused(self):
        return self.driver.execute_script("const e = document.activeElement; return e.id || e.getAttribute('href') || e.textContent")

    def press(self, *keys):
        """To what has the focus: a live view may replace that element."""
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, wanted, most=40):
        """Only with the keyboard."""
        seen = []
        for _ in range(most):
            self.press(Keys.TAB)
            seen.append(self.focused())
            if seen[-1] == wanted:
                return
        self.fail("Tab does not reach %s: %s" % (wanted, seen))
