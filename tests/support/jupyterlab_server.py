"""A JupyterLab of a test's own."""

import contextlib
import re
import subprocess
import sys
import time
import urllib.request


@contextlib.contextmanager
def serve(folder):
    """The address of a JupyterLab that was started in `folder`, without its /lab."""
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
    ]
    command += [
        "--port-retries=0",
        "--IdentityProvider.token=",
        "--LabApp.extension_manager=readonly",
        "--LabApp.news_url=",
    ]
    log = folder.with_name(folder.name + "-lab.txt")
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            found = re.search(r"http://127\.0\.0\.1:\d+(?=/lab)", log.read_text())
            if found and urllib.request.urlopen(found[0] + "/api").status == 200:
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=30)
