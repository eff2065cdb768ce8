"""Archives: they can be uploaded again, and nothing is written outside their folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from pathlib import Path

import pytest

from mint.engine.messages import UserError
from mint.service.checkpoints.archives import pack, unpack
from mint.service.checkpoints.links import Link, Links
from mint.service.errors import ApiError

LIMIT = 10_000


def archive(tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    file = tmp_path / "archive"
    with tarfile.open(file, mode) as packed:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_what_is_packed_unpacks_to_the_same(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name, size in (("adapter_model.safetensors", 3000), ("adapter_config.json", 2)):
        (source / name).write_bytes(bytes(size))
    packed_files = [(source / file.name).open("rb") for file in source.iterdir()]
    (tmp_path / "archive").write_bytes(b"".join(pack(packed_files)))
    with tarfile.open(tmp_path / "archive", "r:gz") as packed:
        assert packed.getnames()[-1] == "checkpoint_complete"
    unpack(tmp_path / "archive", target, LIMIT)
    found = {file.name: file.read_bytes() for file in target.iterdir()}
    assert found == {file.name: file.read_bytes() for file in source.iterdir()}


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:xz"])
def test_a_folder_around_the_files_and_other_files_do_not_matter(tmp_path: Path, mode: str) -> None:
    (tmp_path / "target").mkdir()
    files = [
        (member("checkpoint", tarfile.DIRTYPE), b""),
        (member("checkpoint/adapter_config.json"), b"{}"),
        (member("checkpoint/README.md"), b"hello"),
        (member(".bashrc"), b"evil"),
    ]
    unpack(archive(tmp_path, *files, mode=mode), tmp_path / "target", LIMIT)
    assert [file.name for file in (tmp_path / "target").iterdir()] == ["adapter_config.json"]


@pytest.mark.parametrize(
    "bad",
    [
        member("../adapter_config.json"),
        member("/adapter_config.json"),
        member("a/../../adapter_config.json"),
        member("..\\adapter_config.json"),
        member("adapter_config.json", tarfile.SYMTYPE, "/etc/passwd"),
        member("adapter_config.json", tarfile.LNKTYPE, "../../secret"),
        member("adapter_config.json", tarfile.FIFOTYPE),
        member("adapter_config.json", tarfile.CHRTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
def test_nothing_leaves_its_folder(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(UserError, match="entry"):
        unpack(archive(tmp_path, (bad, b"")), tmp_path / "target", LIMIT)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["archive", "target"]
    assert not list((tmp_path / "target").iterdir())


def test_an_archive_that_opens_to_too_much(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    bomb = archive(tmp_path, (member("adapter_model.safetensors"), bytes(10 * LIMIT)))
    with pytest.raises(UserError, match="more than 10000 bytes"):
        unpack(bomb, tmp_path / "target", LIMIT)
    many = [(member(f"f{n}"), b"") for n in range(1001)]
    with pytest.raises(UserError, match="1000 entries"):
        unpack(archive(tmp_path, *many), tmp_path / "target", 10**9)


def test_the_same_file_twice(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    twice = [(member("adapter_config.json"), b"{}"), (member("a/adapter_config.json"), b"[]")]
    with pytest.raises(UserError, match="twice"):
        unpack(archive(tmp_path, *twice), tmp_path / "target", LIMIT)


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    whole = archive(tmp_path, (member("adapter_model.safetensors"), bytes(2000))).read_bytes()
    for content in (b"", b"junk" * 300, gzip.compress(b"junk"), whole[:60], whole[:-20]):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(UserError, match=r"\.tar\.gz"):
            unpack(tmp_path / "bad", tmp_path / "target", LIMIT)
        for file in (tmp_path / "target").iterdir():
            file.unlink()


# ---- links ---------------------------------------------------------------------------------------


SECRET = b"a secret of thirty-two characters"


def test_a_modified_link_is_refused() -> None:
    links = Links(SECRET, 60)
    link = Link(
        "tinker://a:train:0/weights/x", "1-2", "adapter_config.json", int(time.time()) + 60, "ada"
    )
    token = links.token(link)
    assert links.open(token) == link
    payload, _, signature = token.rpartition(".")
    other = Links(SECRET, 60).token(Link(link.path, link.version, "optimizer", link.expires, "ada"))
    for bad in (
        payload,
        f"{payload}.",
        f"{payload}.{signature[:-1]}",
        f"{other.rpartition('.')[0]}.{signature}",
        f".{signature}",
        "",
        "ü.ü",
    ):
        with pytest.raises(ApiError) as refused:
            links.open(bad)
        assert refused.value.status_code == 403
    with pytest.raises(ApiError, match="not issued by this service"):
        Links(SECRET[::-1], 60).open(token)


def test_a_link_ends() -> None:
    links = Links(SECRET, 60)
    expired = Link("tinker://a:train:0/weights/x", "1", None, int(time.time()) - 1, "ada")
    with pytest.raises(ApiError, match="expired"):
        links.open(links.token(expired))
