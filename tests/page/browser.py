"""A headless Chromium that the tests of a class share: its start takes longer than most of them."""
import shutil
import tempfile

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

LOGS = ("browser", "performance")


def programs():
    return shutil.which("chromium"), shutil.which("chromedriver")


def start(folder, width, dark):
    browser, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=%d,900" % width,
                 "--user-data-dir=" + folder):
        options.add_argument(word)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {log: "ALL" for log in LOGS})
    started = webdriver.Chrome(service=Service(driver), options=options)
    started.set_window_size(width, 900)
    return started


def use_another_tab(driver):
    """The former one is closed: nothing of it is left, neither its page nor what was set for it."""
    former = driver.current_window_handle
    driver.switch_to.new_window("tab")
    tab = driver.current_window_handle
    driver.switch_to.window(former)
    driver.close()
    driver.switch_to.window(tab)
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})


def open_tab(test, width=1200, dark=False):
    """The driver of an empty tab without cookies, whose logs are empty. The class of the test quits it in the end."""
    cls = type(test)
    if "drivers" not in cls.__dict__:
        cls.drivers = {}
    driver = cls.drivers.get((width, dark))
    if driver is not None:
        try:
            use_another_tab(driver)
        except WebDriverException:  # a test has left it unusable
            driver = None
    if driver is None:
        folder = tempfile.mkdtemp(prefix="flow-browser-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        driver = cls.drivers[width, dark] = start(folder, width, dark)
        cls.addClassCleanup(driver.quit)
    driver.get("about:blank")
    for log in LOGS:
        driver.get_log(log)
    return driver
