"""Against a server on this machine: no test needs a network."""

import hashlib
import io
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from daband.domains._download import ResourceStatus, check_data, download, get_data, unpack
from daband.domains._registry import Resource, pairs
from daband.errors import DataError, InvalidInput

CONTENT = bytes(range(256)) * 8000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        server.asked += 1
        self.send_response(200)
        if self.path == "/chunks":  # the connection ends within one
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"ff\r\nbroken")
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: server.breaks_after])

    def log_message(self, *ignored):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked, running.breaks_after = {"/a": CONTENT}, 0, None
        running.url = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_downloads_verifies_and_reports(server, tmp_path):
    seen = []
    path = download(
        f"{server.url}/a", tmp_path / "deep" / "a", md5=MD5, what="letters", progress=lambda *what: seen.append(what)
    )
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["a", "deep"]
    assert seen[-1] == ("letters", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_what_breaks_off_leaves_nothing(server, tmp_path):
    server.breaks_after = 1_000_000
    with pytest.raises(DataError, match="ended after 1000000 of 2048000 bytes; run the same command again"):
        download(f"{server.url}/a", tmp_path / "a", md5=MD5)
    server.files["/chunks"] = CONTENT
    with pytest.raises(DataError, match=r"cannot be reached .*by hand"):
        download(f"{server.url}/chunks", tmp_path / "a")
    assert names(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match=f"wrong checksum: md5 {MD5}, expected 0123"):
        download(f"{server.url}/a", tmp_path / "a", md5="0123")
    assert names(tmp_path) == []


def test_an_address_that_moved(server, tmp_path):
    with pytest.raises(DataError, match="answers 404"):
        download(f"{server.url}/gone", tmp_path / "a")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a", "http://name.invalid/a"])
def test_no_network_fails_and_helps(tmp_path, url):
    with pytest.raises(DataError, match=r"Is there a network\?.*by hand and put it at"):
        download(url, tmp_path / "a")
    assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a"])
def test_other_schemes_are_refused(tmp_path, url):
    with pytest.raises(InvalidInput, match="only http and https"):
        download(url, tmp_path / "a")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="set DABAND_DATA"):
        download("http://127.0.0.1:9/a", tmp_path / "file" / "a")


def tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd"
            member.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


GOOD = ("good/file", tarfile.REGTYPE)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../evil", tarfile.REGTYPE), "outside the destination"),
        (("good/../../evil", tarfile.REGTYPE), "outside the destination"),
        (("link", tarfile.SYMTYPE), "a link or a device"),
        (("link", tarfile.LNKTYPE), "a link or a device"),
        (("device", tarfile.CHRTYPE), "a link or a device"),
    ],
)
def test_a_member_that_points_outside_is_refused_and_nothing_is_left(tmp_path, member, message):
    (tmp_path / "a.tgz").write_bytes(tar_of(GOOD, member))
    with pytest.raises(DataError, match=message):
        unpack(tmp_path / "a.tgz", tmp_path / "into")
    assert names(tmp_path) == ["a.tgz", "into"]


@pytest.mark.parametrize("content", [b"not an archive", tar_of(GOOD)[:40]], ids=["no archive", "truncated"])
def test_a_damaged_archive_leaves_nothing(tmp_path, content):
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tgz cannot be unpacked"):
        unpack(tmp_path / "a.tgz", tmp_path / "into")
    assert names(tmp_path) == ["a.tgz", "into"]


def test_unpacking_fills_folders_that_are_there(tmp_path):
    (tmp_path / "into" / "good").mkdir(parents=True)
    (tmp_path / "into" / "good" / "mine").write_text("kept")
    (tmp_path / "a.tgz").write_bytes(tar_of(GOOD))
    unpack(tmp_path / "a.tgz", tmp_path / "into")
    assert (tmp_path / "into/good/file").read_bytes() == b"abc"
    assert (tmp_path / "into/good/mine").read_text() == "kept"


@pytest.fixture
def offered(server, monkeypatch):
    """The catalogue of digit, pointing at the server here."""
    archive = tar_of(("mnist_m/mnist_m_train_labels.txt", tarfile.REGTYPE))
    server.files |= {"/m.tar.gz": archive}
    entries = (
        Resource(
            what="letters", places=("letters/a",), licence="free", url=f"{server.url}/a", md5=MD5, content_md5=MD5
        ),
        Resource(
            what="pictures",
            places=("mnist_m/mnist_m_train_labels.txt",),
            licence="free",
            url=f"{server.url}/m.tar.gz",
            md5=hashlib.md5(archive).hexdigest(),
            archive="m.tar.gz",
            unpack_into=".",
        ),
        Resource(what="rest", places=("rest",), licence="free", by_hand="ask the authors"),
    )
    monkeypatch.setitem(pairs._members, "digit", replace(pairs.get("digit"), resources=entries))
    return server


def test_get_fetches_what_is_missing_and_only_that(offered, places):
    assert [(record.resource.what, record.state) for record in get_data("digit")] == [
        ("letters", "downloaded"),
        ("pictures", "downloaded"),
        ("rest", "by hand"),
    ]
    assert names(places) == ["a", "letters", "mnist_m", "mnist_m_train_labels.txt"]  # the archive is gone
    asked = offered.asked
    assert [record.state for record in get_data("digit")] == ["there already", "there already", "by hand"]
    assert offered.asked == asked


def test_check_tells_there_missing_and_damaged(offered, places):
    assert [status.state for status in check_data("digit")] == ["missing"] * 3
    list(get_data("digit"))
    assert [status.state for status in check_data("digit")] == ["there", "there", "missing"]
    (places / "letters/a").write_bytes(CONTENT[:-1])
    statuses = list(check_data("digit"))
    assert statuses[0].state == "damaged"
    assert "delete it and run `daband data get digit`" in statuses[0].remedy
    assert statuses[2].remedy == "ask the authors"
    assert next(iter(get_data("digit"))).state == "downloaded"  # what is damaged is fetched again


def test_a_link_inside_the_folder_is_refused_too(tmp_path):
    """Chains of links have led tarfile's own filter outside; no data set needs one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("inside")
        member.type, member.linkname = tarfile.SYMTYPE, "good/file"
        archive.addfile(member)
    (tmp_path / "a.tgz").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="'inside', a link or a device: it is not unpacked"):
        unpack(tmp_path / "a.tgz", tmp_path / "into")


@pytest.mark.parametrize("state", ["there", "there already", "downloaded"])
def test_what_is_there_needs_no_remedy(tmp_path, state):
    resource = pairs.get("digit").resources[0]
    assert ResourceStatus("digit", resource, state, tmp_path).remedy == ""
    assert ResourceStatus("digit", resource, "missing", tmp_path).remedy
