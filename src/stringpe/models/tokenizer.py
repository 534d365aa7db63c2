"""Text to token numbers and back, with the package `tokenizers`: train a BPE on captions, or load an existing file.

tokenizer = Tokenizer.train(captions, vocab=8000)
tokens = tokenizer.encode(["a red mug", "two dogs in the snow"], context=64)      # (2, 64), padded
"""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..io.files import write_text
from ..io.imports import LANGUAGE, import_optional

PADDING, END = "[PAD]", "[END]"
_OTHER_PADDINGS = ("<pad>", "<|pad|>", "<|endoftext|>", "</s>", "[SEP]")  # names of it in files of other projects


class Tokenizer:
    """Texts to rows of token numbers. padding: the number that fills up short texts. truncated: how many texts have
    been cut to their context so far. len() is the size of the vocabulary."""

    def __init__(self, inner: Any, padding: int):
        self.inner, self.padding, self.truncated = inner, padding, 0

    @classmethod
    def train(cls, captions: Iterable[str], vocab: int = 8000) -> "Tokenizer":
        """A BPE of at most `vocab` tokens, trained on captions in lower case. It works on bytes, so that it can encode
        any text; every text ends with the token [END]."""
        package = _package()
        inner = package.Tokenizer(package.models.BPE())
        inner.normalizer = package.normalizers.Sequence([package.normalizers.NFC(), package.normalizers.Lowercase()])
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=True)
        inner.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[PADDING, END],
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(map(_without_surrogates, captions), trainer)
        inner.post_processor = package.processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
        return cls(inner, padding=0)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Tokenizer":
        """The tokeniser in a tokenizer.json, of this package or of another model; padding is found by its name."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"there is no tokeniser file {path}: give the path of a tokenizer.json")
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), where=str(path))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a tokenizer.json: it is not UTF-8 text ({error})") from None

    @classmethod
    def from_json(cls, text: str, where: str = "the text") -> "Tokenizer":
        """The tokeniser of the contents of a tokenizer.json."""
        try:
            inner = _package().Tokenizer.from_str(text)
        except Exception as error:  # the package raises nothing more specific
            raise ValueError(f"{where} is not a tokenizer.json that `tokenizers` can read: {error}") from error
        known = [inner.token_to_id(name) for name in (PADDING, *_OTHER_PADDINGS)]
        padding = inner.padding["pad_id"] if inner.padding else next((i for i in known if i is not None), None)
        if padding is None:
            raise ValueError(f"{where} names no padding token: it needs a padding entry, or a token {PADDING}")
        inner.no_padding()
        inner.no_truncation()
        return cls(inner, padding)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a tokenizer.json that `load`, `tokenizers` and `transformers` read."""
        write_text(Path(path), self.to_json())

    def to_json(self) -> str:
        """The contents of a tokenizer.json."""
        text: str = self.inner.to_str()
        return text

    def __len__(self) -> int:
        size: int = self.inner.get_vocab_size()
        return size

    def encode(self, texts: Sequence[str], context: int = 64) -> Tensor:
        """Token numbers (b, context). Texts longer than the context are cut, but keep their end token, and are counted
        in `truncated`. Empty texts are refused."""
        if isinstance(texts, str):
            raise ValueError(f"encode takes a list of texts, got the single text {texts!r}: put it into a list")
        if context < 1:
            raise ValueError(f"context must be at least 1 token, got {context}")
        empty = [i for i, text in enumerate(texts) if not text.strip()]
        if empty:
            raise ValueError(f"text {empty[0]} of {len(texts)} is empty: leave it out")
        rows = torch.full((len(texts), context), self.padding, dtype=torch.long)
        for row, encoding in zip(rows, self.inner.encode_batch(list(map(_without_surrogates, texts))), strict=True):
            numbers = encoding.ids
            if len(numbers) > context:
                self.truncated += 1
                ends = encoding.special_tokens_mask[-1]  # whether the text closes with a special token
                numbers = numbers[: context - 1] + numbers[-1:] if ends else numbers[:context]
            row[: len(numbers)] = torch.tensor(numbers)
        return rows

    def decode(self, tokens: Tensor) -> list[str]:
        """The texts of token rows (b, n), without padding and other special tokens."""
        rows = [[t for t in row if t != self.padding] for row in tokens.tolist()]
        return [text.strip() for text in self.inner.decode_batch(rows, skip_special_tokens=True)]


def _without_surrogates(text: str) -> str:
    """The text with "?" for every half of a surrogate pair, which JSON can hold, but which is not a character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _package() -> Any:
    return import_optional("tokenizers", "text", LANGUAGE)
