"""Frozen encoders of images and texts: by name, path or module, with features that are computed
once.
"""

import io

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch import nn

import daband
from daband.domains import Columns, from_images, from_table, from_texts
from daband.errors import DataError, InvalidInput
from daband.features._input_encoders import ImageReader, InputEncoder, OnnxProgram, as_input_encoder

# A pretrained network cannot be loaded while contexts are nudged.
pytestmark = pytest.mark.exact_contexts


class Net(nn.Module):
    """A small network of one's own, whose code fixes the number of rows when it is traced."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3)
        self.token = nn.Parameter(torch.ones(1, 4, 1))

    def forward(self, images):
        maps = torch.relu(self.first(images)).flatten(2)
        return torch.cat([self.token.expand(len(maps), -1, -1), maps], dim=2).mean(dim=2)


@pytest.fixture
def folders(tmp_path, write_images):
    write_images(tmp_path / "drawn", ["cat", "dog"], 12)
    write_images(tmp_path / "photos", ["cat", "dog"], 6, seed=1)
    return {"source": tmp_path / "drawn", "target": tmp_path / "photos"}


def pixels_of(path, side):
    image = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255)


def test_contexts_are_the_features_of_a_module(folders):
    net = Net().eval()
    pair = from_images(**folders, encoder=net, framing=16)
    assert pair.context_shape == (4,)
    assert pair.class_names == ("cat", "dog")
    assert (len(pair.target), len(pair.target_test)) == (6, 6)
    assert pair.shift.aligns_features  # as for pixels
    contexts = pair.target.read(np.arange(6))
    for path, context in zip(pair.target.row_names["image"], contexts, strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(context, net(pixels_of(path, 16))[0].numpy(), atol=1e-5)
    one = pair.table.contexts({"image": pair.target.row_names["image"][0]})
    np.testing.assert_allclose(one[0], contexts[0], atol=1e-6)
    unlabelled = from_images(
        source=folders["source"], target=folders["target"] / "cat", encoder=net, framing=16
    )
    assert unlabelled.target_test is None


def test_features_are_computed_once(folders, monkeypatch):
    encoder = as_input_encoder(Net(), (16, 16))
    first = from_images(**folders, encoder=encoder)
    calls = []
    run = OnnxProgram.__call__
    monkeypatch.setattr(
        OnnxProgram,
        "__call__",
        lambda self, *arrays: calls.append(len(arrays[0])) or run(self, *arrays),
    )
    again = from_images(**folders, encoder=encoder)
    assert not calls
    np.testing.assert_array_equal(again.target.read(np.arange(6)), first.target.read(np.arange(6)))
    changed = first.target.row_names["image"][0]
    Image.new("RGB", (20, 20), (250, 9, 9)).save(changed)
    other = from_images(**folders, encoder=encoder)
    assert calls == [1]
    assert not np.allclose(other.target.read(np.arange(1)), first.target.read(np.arange(1)))


def test_an_onnx_file_is_the_module(folders, tmp_path):
    net = Net()
    encoder = as_input_encoder(net, (16, 16))
    (tmp_path / "net.onnx").write_bytes(encoder.program.content)
    photo = (folders["source"] / "cat" / "cat_000.png").read_bytes()
    np.testing.assert_allclose(
        as_input_encoder(str(tmp_path / "net.onnx")).encode_one(photo),
        encoder.encode_one(photo),
        atol=1e-6,
    )
    with pytest.raises(InvalidInput):
        as_input_encoder(tmp_path / "net.pt")


def test_the_shorter_side_is_resized_and_the_centre_cropped():
    rng = np.random.default_rng(0)
    content = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (50, 75, 3), np.uint8)).save(content, "PNG")
    rule = ImageReader(
        40, 32, interpolation="bicubic", mean=(0.1, 0.2, 0.3), deviation=(0.5, 0.6, 0.7)
    )
    image = Image.open(content).resize((60, 40), Image.Resampling.BICUBIC).crop((14, 4, 46, 36))
    expected = (np.asarray(image, np.float32) / 255 - np.float32([0.1, 0.2, 0.3])) / np.float32(
        [0.5, 0.6, 0.7]
    )
    np.testing.assert_allclose(
        rule.read(content.getvalue()), expected.transpose(2, 0, 1), atol=1e-6
    )


def test_efficientnet_comes_with_its_weights_and_pixels(folders):
    from daband.neural.encoders._pretrained import load_backbone

    encoder = as_input_encoder("efficientnet_lite0")
    path = folders["source"] / "dog" / "dog_003.png"
    with torch.no_grad():
        expected = load_backbone("efficientnet_lite0").module(
            (pixels_of(path, 224) - 127 / 255) / (128 / 255)
        )
    np.testing.assert_allclose(encoder.encode_one(path), expected[0].numpy(), atol=1e-4)
    assert encoder.n_features == 1280
    again = InputEncoder.from_state(encoder.state(), encoder.arrays())
    assert again.digest == encoder.digest
    np.testing.assert_array_equal(again.encode_one(path), encoder.encode_one(path))


def test_a_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(InvalidInput, match=r"'timm:resnet18' .*install timm ") as told:
        as_input_encoder("timm:resnet18")
    assert "\n" not in str(told.value)


def test_what_is_no_encoder_is_named(folders, tmp_path):
    for wrong, message in (
        ("keras:vgg", "'keras:vgg' .*efficientnet_lite0, timm"),
        (7, r"encoder .*torch\.nn\.Module, .*7$"),
        (nn.Linear(3, 3), r"encoder .*\(3, 224, 224\)"),
    ):
        with pytest.raises(InvalidInput, match=message):
            from_images(**folders, encoder=wrong)
    with pytest.raises(InvalidInput, match=r"framing .*'efficientnet_lite0'"):
        from_images(**folders, encoder="efficientnet_lite0", framing=64)
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match=r"encoder .*ONNX .*onnxruntime"):
        as_input_encoder(tmp_path / "bad.onnx")
    (folders["source"] / "cat" / "cat_004.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cat_004\.png' .*row 8 "):
        from_images(**folders, encoder=Net(), framing=16)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A small sentence transformer with random weights, saved to a folder."""
    from tests.text_encoder import save_text_encoder

    return save_text_encoder(tmp_path_factory.mktemp("texts"))


@pytest.mark.slow
def test_texts_are_read_as_their_library_reads_them(text_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer
    from transformers import BertModel

    from daband.neural.encoders._frozen_encoder import to_onnx

    class Tokens(nn.Module):
        def __init__(self, folder):
            super().__init__()
            self.network = BertModel.from_pretrained(folder)

        def forward(self, ids, mask):
            return self.network(ids, mask).last_hidden_state

    texts = [
        "where is my parcel?",
        "A refund, please",
        "thanks",
        "where is my refund and my parcel " * 30,
    ]
    labels = ["track", "refund", "none", "track"]
    encoder = f"sentence-transformers:{text_folder}"
    pair = from_texts(source=(texts * 8, labels * 8), target=texts, encoder=encoder)
    assert pair.class_names == ("none", "refund", "track")
    expected = SentenceTransformer(str(text_folder), device="cpu").encode(texts)
    np.testing.assert_allclose(pair.target.read(np.arange(4)), expected, atol=1e-5)
    np.testing.assert_allclose(pair.table.contexts({"text": texts[3]})[0], expected[3], atol=1e-5)
    # as exported elsewhere: a vector per token, and a tokenizer that does not pad
    (tmp_path / "onnx").mkdir()
    tokens = {
        name: torch.ones((3, 5), dtype=torch.int64) for name in ("input_ids", "attention_mask")
    }
    program = to_onnx(
        Tokens(text_folder.parent / "plain"), tuple(tokens.values()), names=list(tokens)
    )
    (tmp_path / "onnx" / "model.onnx").write_bytes(program.content)
    words = Tokenizer.from_str(pair.table.columns[0].encoder.tokenizer)
    words.no_padding()
    words.save(str(tmp_path / "onnx" / "tokenizer.json"))
    other = from_texts(source=(texts * 8, labels * 8), target=texts, encoder=tmp_path / "onnx")
    np.testing.assert_allclose(other.target.read(np.arange(4)), expected, atol=1e-5)
    frame = pl.DataFrame({"text": texts * 8, "age": [1.0, 2.0, 3.0, 4.0] * 8, "label": labels * 8})
    columns = Columns(context=["age", "text"], label="label", encoders={"text": encoder})
    mixed = from_table(source=frame, target=frame.drop("label"), columns=columns)
    assert mixed.context_shape == (1 + expected.shape[1],)
    policy = daband.LinUCB.for_pair(mixed, seed=0)
    policy.save(tmp_path / "p.safetensors")
    row = {"age": 2.0, "text": None}  # no text is an empty one
    found = daband.load(tmp_path / "p.safetensors").table.contexts(row)
    np.testing.assert_array_equal(found, policy.table.contexts(row))
    with pytest.raises(InvalidInput, match=r"'text': .*7$"):
        policy.table.contexts({"age": 2.0, "text": 7})


@pytest.mark.slow
def test_a_column_of_texts_goes_from_the_command_line_to_decisions(text_folder, tmp_path):
    from tests.cli.test_choose import daband as run

    texts = ["where is my parcel?", "A refund, please", "thanks"]
    arms = ["track", "refund", "none"]
    old = pl.DataFrame({"mail": texts * 20, "words": [4.0, 3.0, 1.0] * 20, "answer": arms * 20})
    old.write_csv(tmp_path / "old.csv")
    old.drop("answer").write_csv(tmp_path / "new.csv")
    files = ("--source", "old.csv", "--target", "new.csv", "--label", "answer")
    encoder = ("--text", "mail", "--encoder", f"sentence-transformers:{text_folder}")
    told = run("choose", *files, *encoder, "--quick", "--out", "o", cwd=tmp_path)
    assert "│ mail │ text │ read by" in told
    run("export", "o", "p.daband", "--explore", "greedy", cwd=tmp_path)
    assert daband.load_deployed(tmp_path / "p.daband").columns == ("mail", "words")
    run("decide", "p.daband", "new.csv", "--out", "log.csv", cwd=tmp_path)
    assert (pl.read_csv(tmp_path / "log.csv")["arm"] == old["answer"]).mean() > 0.9
    told = run("choose", *files, "--text", "mail", "--out", "x", cwd=tmp_path, code=2)
    assert "text and encoder must be given together" in told


def test_a_column_with_an_encoder_is_a_context():
    with pytest.raises(InvalidInput, match=r"columns\.encoders .*'review'"):
        Columns(context=["age"], label="label", encoders={"review": "sentence-transformers:x"})
    with pytest.raises(InvalidInput, match=r"text .*encoder .*--text .*--encoder"):
        daband.domains.DataOptions(source=__file__, target=__file__, label="a", text=["b"]).read()


def test_a_text_without_tokens_has_features_of_zeros():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()

    class Program:
        inputs = [("input_ids", ["n", "length"])]  # noqa: RUF012
        single = False
        content = b""

        def __call__(self, ids):
            return np.ones((*ids.shape, 2)) + ids[:, :, None]

    encoder = InputEncoder("words", Program(), tokenizer=words.to_str())
    assert encoder.encode_one("").tolist() == [0.0, 0.0]
    assert encoder.encode_one("a ?").tolist() == [1.5, 1.5]


def test_missing_files_of_an_encoder_are_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    for given, message in (
        (tmp_path, r"tokenizer\.json"),
        (tmp_path / "other.onnx", r"other\.onnx "),
    ):
        with pytest.raises(daband.InvalidInput, match=message):
            as_input_encoder(str(given))
