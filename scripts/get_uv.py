"""Fetches the uv that uv.lock names, checks it against the lock's checksum and puts its binary into a folder.

Called by bootstrap.sh on machines without uv; needs nothing but the standard library.
"""

import hashlib
import io
import os
import platform
import re
import ssl
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

TIMEOUT_S = 60


def main(lock: Path, target: Path) -> None:
    packages = tomllib.loads(lock.read_text())["package"]
    uv = next(package for package in packages if package["name"] == "uv")
    content = fetch_with_pip(uv["version"]) or fetch_with_urllib(wheel_for_this_machine(uv["wheels"]))
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if checksum not in {wheel["hash"] for wheel in uv["wheels"]}:
        sys.exit(f"get_uv: what was downloaded is no uv {uv['version']} that uv.lock knows ({checksum})")
    install(content, target)


def fetch_with_pip(version: str) -> bytes | None:
    """Tries pip first, if it is installed: pip knows this machine's indexes, proxies and certificates."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", folder, f"uv=={version}"], capture_output=True, check=False)
        return next(Path(folder).glob("uv-*.whl")).read_bytes() if done.returncode == 0 else None


def wheel_for_this_machine(wheels: list[dict[str, str]]) -> str:
    """Returns the address of the wheel that fits the system, the C library and the processor."""
    linux = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    system = {"Linux": linux, "Darwin": "macosx"}.get(platform.system(), "none")
    for wheel in wheels:
        name = filename(wheel["url"])
        if system in name and name.endswith(f"_{platform.machine()}.whl"):
            return wheel["url"]
    sys.exit(f"get_uv: PyPI has no uv for {platform.system()} on {platform.machine()}")


def filename(address: str) -> str:
    return urllib.parse.urlsplit(address).path.rsplit("/", 1)[1]


def fetch_with_urllib(address: str) -> bytes:
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL")
    try:
        return read(address_in(index, filename(address))) if index else read_without_certificates(address)
    except OSError as error:
        sys.exit(f"get_uv: cannot download {filename(address)}: {error}")


def address_in(index: str, name: str) -> str:
    """Returns the address of the same file in the index that the user has configured."""
    page = f"{index.rstrip('/')}/uv/"
    links: list[str] = re.findall(r'href="([^"]+)"', read(page).decode())
    for link in links:
        if filename(link) == name:
            return urllib.parse.urljoin(page, link)
    sys.exit(f"get_uv: the index that the environment names does not have {name}")


def read_without_certificates(address: str) -> bytes:
    """Downloads without checking certificates: a bare Debian has no root certificates. The checksum proves the file
    anyway.
    """
    try:
        return read(address)
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
    return read(address, ssl._create_unverified_context())


def read(address: str, context: ssl.SSLContext | None = None) -> bytes:
    with urllib.request.urlopen(address, timeout=TIMEOUT_S, context=context) as answer:
        return bytes(answer.read())


def install(content: bytes, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        member = next(name for name in archive.namelist() if name.endswith("/scripts/uv"))
        partial = target / f"uv.{os.getpid()}"
        partial.write_bytes(archive.read(member))
    partial.chmod(0o755)
    # Renamed in one step, so that a second process never sees half a binary.
    partial.replace(target / "uv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
