"""Check what `make dist` built.

contents   wheel and sdist hold every file of mlsysim_sweep, and no top-level `kernels` or `grids`
run        each is installed into an empty environment of every Python 3.11 to 3.13 on this machine,
           and its command sweeps a bundled grid to Parquet from a folder outside the repository

Standard library only.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGE = "mlsysim_sweep"
GRID = "gpt3-1k-h100"
PYTHONS = ("3.11", "3.12", "3.13")
# Where Pythons live that are not on PATH: pyenv, uv, Debian, a local build, Homebrew.
PYTHON_FOLDERS = (
    "~/.pyenv/versions/*/bin",
    "~/.local/share/uv/python/*/bin",
    "/usr/bin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
)

# Runs inside the new environment, in the folder where the sweep was written.
INSPECT = """
import importlib.util, pathlib, sys
import pyarrow.parquet as pq
import mlsysim_sweep

package = pathlib.Path(mlsysim_sweep.__file__).parent
assert package.is_relative_to(sys.prefix), f"imported from {package}, not from the environment"
assert (package / "py.typed").is_file(), "py.typed is missing"
for name in ("kernels", "grids"):
    assert importlib.util.find_spec(name) is None, f"`import {name}` works"
file = pq.ParquetFile("out.parquet")
assert file.metadata.num_rows > 0, "the sweep has no rows"
assert b"mlsysim_sweep" in file.schema_arrow.metadata, "the sweep has no metadata"
print(f"{file.metadata.num_rows:,} rows, {file.metadata.num_columns} columns")
"""


def package_files() -> set[PurePosixPath]:
    """Files of the package in the working tree, relative to the root."""
    return {
        PurePosixPath(path.relative_to(ROOT).as_posix())
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != ".DS_Store"
    }


def wheel_files(wheel: Path) -> set[PurePosixPath]:
    """Files inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist()}


def sdist_files(sdist: Path) -> set[PurePosixPath]:
    """Files and links inside the sdist, without the folder that wraps them."""
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(member.name) for member in archive if not member.isdir()]
    return {name.relative_to(name.parts[0]) for name in names}


def content_faults(found: set[PurePosixPath], expected: set[PurePosixPath]) -> list[str]:
    """Say what an archive lacks and what it should not have."""
    faults = [f"missing: {path}" for path in sorted(expected - found)]
    in_package = {path for path in found if path.parts[0] == PACKAGE}
    faults += [f"not in the repository: {path}" for path in sorted(in_package - expected)]
    faults += [
        f"top level: {path}" for path in sorted(found) if path.parts[0] in ("kernels", "grids")
    ]
    return faults


def built() -> tuple[Path, Path]:
    """Return the one wheel and the one sdist in dist/."""
    wheels, sdists = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit("dist/ should hold one wheel and one sdist: run `make dist`")
    return wheels[0], sdists[0]


def check_contents() -> bool:
    """Compare both archives with the working tree; print what differs."""
    wheel, sdist = built()
    package = package_files()
    beside = {
        PurePosixPath(name) for name in ("pyproject.toml", "README.md", "LICENSE", "PKG-INFO")
    }
    good = True
    for archive, found, expected in (
        (wheel, wheel_files(wheel), package),
        (sdist, sdist_files(sdist), package | beside),
    ):
        faults = content_faults(found, expected)
        for fault in faults:
            print(f"{archive.name}: {fault}")
        if not faults:
            print(f"{archive.name}: {len(package)} files of {PACKAGE}, none missing, none astray")
        good = good and not faults
    strangers = {path.parts[0] for path in wheel_files(wheel)} - {PACKAGE}
    if len(strangers) != 1:  # the .dist-info folder
        print(f"{wheel.name}: top level holds {sorted(strangers)}")
        good = False
    return good


def runs_as(python: Path, version: str) -> bool:
    """Whether this interpreter starts, is of this version, and can build environments."""
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == version


def find_pythons() -> dict[str, Path]:
    """Find one working interpreter for each version, PATH first."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    for pattern in PYTHON_FOLDERS:
        expanded = Path(pattern).expanduser()
        folders += sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor))))
    found = {}
    for version in PYTHONS:
        candidates = (folder / f"python{version}" for folder in folders)
        working = (path for path in candidates if path.is_file() and runs_as(path, version))
        if python := next(working, None):
            found[version] = python
    return found


def install_and_run(python: Path, archive: Path, constraints: list[str]) -> str:
    """Install one archive into an empty environment, sweep, look at the file; return a summary."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="check-dist-") as name:
        folder = Path(name)
        scripts = folder / "env" / "bin"

        def run(*command: str | Path) -> str:
            return subprocess.run(
                command, cwd=folder, env=outside, check=True, text=True, capture_output=True
            ).stdout

        run(python, "-I", "-m", "venv", folder / "env")
        pip = (scripts / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        run(*pip, "pip>=25.3")
        run(*pip, *constraints, archive)
        run(scripts / "mlsysim-sweep", "run", GRID, "-o", "out.parquet")
        return run(scripts / "python", "-c", INSPECT).strip()


def check_runs(latest: bool) -> bool:
    """Try both archives with every Python; print one line each."""
    pythons = find_pythons()
    for version in PYTHONS:
        if version not in pythons:
            print(f"Python {version}: not on this machine")
    pinned = ROOT / "constraints.txt"
    constraints = [] if latest else ["--constraint", pinned, "--build-constraint", pinned]
    good = bool(pythons)
    for version, python in pythons.items():
        for archive in built():
            label = f"Python {version}, {archive.name}"
            try:
                print(f"{label}: {install_and_run(python, archive, constraints)}", flush=True)
            except subprocess.CalledProcessError as failure:
                print(
                    f"{label}: FAILED: {failure.cmd}\n{failure.stdout}{failure.stderr}", flush=True
                )
                good = False
    return good


def main() -> int:
    """Parse the command line and run one check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=("contents", "run"))
    parser.add_argument(
        "--latest", action="store_true", help="run: newest dependencies, not constraints.txt"
    )
    options = parser.parse_args()
    good = check_contents() if options.check == "contents" else check_runs(options.latest)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
