"""Against a server on this machine: no test needs a network."""

import gzip
import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from daband.domains._registry import Resource, ResourceStatus, check_data, download, get_data, pairs
from daband.errors import DataError

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
    path = tmp_path / "deep" / "a"
    download(f"{server.url}/a", path, md5=MD5, what="letters", progress=lambda *what: seen.append(what))
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["a", "deep"]
    assert seen[-1] == ("letters", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_what_breaks_off_leaves_nothing(server, tmp_path):
    server.breaks_after = 1_000_000
    with pytest.raises(DataError, match="ended after 1000000 of 2048000 bytes; run the same command again"):
        download(f"{server.url}/a", tmp_path / "a", md5=MD5)
    server.files["/chunks"] = CONTENT
    with pytest.raises(DataError, match=r"cannot be downloaded .*by hand"):
        download(f"{server.url}/chunks", tmp_path / "a")
    assert names(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match=f"wrong checksum: md5 {MD5}, expected 0123"):
        download(f"{server.url}/a", tmp_path / "a", md5="0123")
    assert names(tmp_path) == []


def test_an_address_that_moved(server, tmp_path):
    with pytest.raises(DataError, match="HTTP Error 404"):
        download(f"{server.url}/gone", tmp_path / "a")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a", "http://name.invalid/a"])
def test_no_network_fails_and_helps(tmp_path, url):
    with pytest.raises(DataError, match=r"Is there a network\?.*by hand and put it at"):
        download(url, tmp_path / "a")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="set DABAND_DATA"):
        download("http://127.0.0.1:9/a", tmp_path / "file" / "a")


@pytest.fixture
def offered(server, monkeypatch):
    """The catalogue of digit, pointing at the server here."""
    packed = gzip.compress(CONTENT)
    server.files |= {"/m.gz": packed}
    entries = (
        Resource(
            what="letters", places=("letters/a",), licence="free", url=f"{server.url}/a", md5=MD5, content_md5=MD5
        ),
        Resource(
            what="pictures",
            places=("pictures/m.gz", "pictures/m"),
            licence="free",
            url=f"{server.url}/m.gz",
            md5=hashlib.md5(packed).hexdigest(),
            content_md5=MD5,
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
    assert names(places) == ["a", "letters", "m.gz", "pictures"]
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


@pytest.mark.parametrize("state", ["there", "there already", "downloaded"])
def test_what_is_there_needs_no_remedy(tmp_path, state):
    resource = pairs.get("digit").resources[0]
    assert ResourceStatus("digit", resource, state, tmp_path).remedy == ""
    assert ResourceStatus("digit", resource, "missing", tmp_path).remedy
