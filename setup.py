"""Adds ``conf/``, ``demos/`` and ``quickstart/`` to the wheel. The rest is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("conf", "demos", "quickstart")
KINDS = {".jsonl", ".md", ".py", ".yaml"}


class BuildWithFiles(build_py):
    """Copy the files of a clone that ``mint train`` and ``mint init`` read to ``mint/bundled``."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # an editable install reads them in the clone
        for folder in FOLDERS:
            for source in sorted((ROOT / folder).rglob("*")):
                if source.suffix in KINDS:
                    target = Path(self.build_lib, "mint/bundled", source.relative_to(ROOT))
                    self.mkpath(str(target.parent))
                    self.copy_file(str(source), str(target))


setup(cmdclass={"build_py": BuildWithFiles})
