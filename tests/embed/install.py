#!/usr/bin/env python3
"""cmake --install of a build without the library, and of one without programs. The scripts that CMake generated are run with
the paths of the built files changed to some that do not exist.

usage: install.py CMAKE BUILD_FOLDER
"""
import pathlib
import subprocess
import sys
import tempfile


class Install:
    def __init__(self, cmake, build, folder):
        self.cmake, self.build, self.folder = cmake, pathlib.Path(build), pathlib.Path(folder)
        self.prefix = self.folder / "prefix"

    def without(self, script, name):
        """A copy of a script for which NAME, a file of the build, is not built."""
        text = (self.build / script).read_text()
        missing = text.replace(f"{self.build}/{name}", f"{self.folder}/missing/{name}")
        if missing == text:
            sys.exit(f"{script} does not name {name}")
        copy = self.folder / "install.cmake"
        copy.write_text(missing)
        return copy

    def run(self, script, *options):
        done = subprocess.run([self.cmake, f"-DCMAKE_INSTALL_PREFIX={self.prefix}", *options, "-P", str(script)], capture_output=True, text=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def installed(self):
        return sorted(path.name for path in self.prefix.rglob("*"))


def expect(holds, what, seen):
    if not holds:
        sys.exit(f"failed: {what}; seen: {seen}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        install = Install(*sys.argv[1:], folder)
        library = next(install.build.glob("libflow.so.*.*"), install.build / "libflow.so").name
        script = install.without("cmake/library/cmake_install.cmake", library)
        how = f"cmake --build {install.build} --target flow_shared"
        seen = code, said = install.run(script)
        expect(code == 0 and "Left out: libflow" in said and how in said and not install.installed(), "the library is left out", seen)
        seen = code, said = install.run(script, "-DCMAKE_INSTALL_COMPONENT=library")
        expect(code != 0 and "libflow is not built" in said and how in said and not install.installed(), "only the library", seen)
        for program in ("flow", "flow-executor", "flow-front"):
            script = install.without("cmake_install.cmake", f"bin/{program}")
            seen = code, said = install.run(script, "-DCMAKE_INSTALL_COMPONENT=programs")
            expect(code != 0 and f"{program} is not built. Run: cmake --build {install.build} --target flow flow-executor flow-front" in said,
                   "programs that are not built", seen)
            expect(not install.installed(), "nothing is installed", install.installed())
    print("what is not built is left out, or named")


main()
