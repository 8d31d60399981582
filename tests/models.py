"""Tiny retrievers and encoders for tests."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from restd.artifacts import create, open_artifact
from restd.encode import fit_tfidf_svd
from restd.models import CompactBackbone, CompactConfig, T5Backbone, T5Config, read_backbone
from restd.models.tokenizer import train_tokenizer

SIZES = (5, 3, 4)
WORDS = ("red", "blue", "steel", "kettle", "mug", "lamp", "desk", "small", "large", "oak", "glass", "cable")
TEXTS = [" ".join(np.random.default_rng(number).choice(WORDS, 3 + number % 5)) for number in range(40)]
QUERIES = ["red kettle", "small oak desk with a glass lamp and a long blue cable", "mug", ""]
PATHS = [["home", "lamp", "desk"], ["home", "lamp"], ["home"], [], ["office", "cable", "long", "red"], ["office"]]
FRESH = T5Config(model="fresh", vocabulary=60, width=32, feed=64, layers=2, heads=2, head_width=16)
COMPACT = CompactConfig(width=32, heads=2)


def tiny_t5(sizes=SIZES, *, seed=0, **settings):
    return T5Backbone.made(sizes, replace(FRESH, **settings), texts=TEXTS, seed=seed).eval()


def tiny_compact(sizes=SIZES, *, encoder=None, seed=0, **settings):
    encoder = encoder or fit_tfidf_svd(TEXTS, dim=8)
    return CompactBackbone(encoder, sizes, replace(COMPACT, **settings), seed=seed).eval()


def untied(folder, kind, *, spare=0):
    """Save an mT5, or a T5 1.1, whose head is not tied to its embeddings."""
    from transformers import MT5Config, MT5ForConditionalGeneration, T5ForConditionalGeneration
    from transformers import T5Config as Shape

    tokenizer = train_tokenizer(TEXTS, 60)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    vocabulary = len(tokenizer) + spare
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mt5":
            model = MT5ForConditionalGeneration(MT5Config(vocab_size=vocabulary, **sizes))
        else:
            shape = Shape(vocab_size=vocabulary, feed_forward_proj="gated-gelu", tie_word_embeddings=False, **sizes)
            model = T5ForConditionalGeneration(shape)
        model.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn(vocabulary, 32))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, T5Config(model=str(folder))


def tiny_sentence_model(folder, *, dense=None, longest=16):
    """Save a BERT of random weights as a sentence-transformers model; return where it is."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    bert = folder / "bert"
    shape = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(shape).save_pretrained(bert)
        last = [] if dense is None else [Dense(8, dense)]
    BertTokenizerFast(vocab={word: place for place, word in enumerate(words)}).save_pretrained(bert)
    modules = [Transformer(str(bert), max_seq_length=longest), Pooling(8), *last]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return str(folder / "model")


def some_sids(rows=4, sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(size, size=rows) for size in sizes], axis=1))


def memory_of(model, texts=QUERIES):
    return model.encode(model.prepare(texts).batch(np.arange(len(texts))))


def scores(model, texts=QUERIES, sids=None):
    """Scores of every level with gradients switched off."""
    with torch.no_grad():
        sids = some_sids(len(texts), model.sizes) if sids is None else sids
        return model.logits(model.states(memory_of(model, texts), sids).states)


def stored(model, folder, ids=("a", "b", "c"), *, state=None):
    """Write a model into an artefact, with other weights if some are given, and read it again."""
    with create(folder, kind="model", schema=1, settings=model.describe()) as writer:
        model.write(writer, state or model.state_dict(), pa.array(ids))
    artifact = open_artifact(folder, kind="model", schema=1)
    return read_backbone(artifact, artifact.manifest.settings).eval()
