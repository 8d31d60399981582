"""A tokenizer for models that start from nothing."""

from collections.abc import Sequence
from typing import Any


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Train a byte-pair tokenizer on texts; `transformers` saves and loads it like any other.

    Byte pairs and not T5's unigrams, whose trainer gives other pieces at every run.

    >>> tokenizer = train_tokenizer(["red kettle", "blue kettle", "red desk"] * 5, 40)
    >>> tokenizer.decode(tokenizer("red kettle")["input_ids"], skip_special_tokens=True)
    'red kettle'
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
