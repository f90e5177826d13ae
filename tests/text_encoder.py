"""A small sentence transformer with random weights, as a folder: its libraries load it as they load
a real one.
"""

from pathlib import Path

_TEXTS = [
    "where is my parcel",
    "a refund please",
    "thanks for the quick answer",
    "my order is late",
]


def save_text_encoder(folder: Path) -> Path:
    import torch
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(
        _TEXTS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=list(special.values()))
    )
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=48, **special).save_pretrained(
        folder / "plain"
    )
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(vocab_size=words.get_vocab_size(), max_position_embeddings=48, **sizes)
    BertModel(config).save_pretrained(folder / "plain")
    SentenceTransformer(str(folder / "plain"), device="cpu").save(str(folder / "sentences"))
    return folder / "sentences"
