"""Tiny sentence-transformers models of random weights, in the shapes of MPNet, Sentence-T5 and BGE-M3."""

import torch

from restd.models.tokenizer import train_tokenizer
from tests.training import COLORS, MATERIALS, THINGS

TEXTS = [f"{color} {material} {thing}" for color in COLORS for material in MATERIALS for thing in THINGS]
WIDTH = 16


def save_sentence_model(folder, kind, *, prompts=None, seed=0):
    """Save a model as a hub would have it; returns its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = train_tokenizer(TEXTS, 80)
        _network(kind, len(tokenizer)).save_pretrained(folder / "network")
        tokenizer.save_pretrained(folder / "network")
        behind = {
            "mpnet": [Pooling(WIDTH, pooling_mode="mean"), Normalize()],
            "t5": [Pooling(WIDTH, pooling_mode="mean"), Dense(WIDTH, WIDTH, bias=False), Normalize()],
            "xlm-r": [Pooling(WIDTH, pooling_mode="cls"), Normalize()],
        }[kind]
    modules = [Transformer(str(folder / "network"), max_seq_length=24), *behind]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
    model.save(str(folder / "model"))
    return str(folder / "model")


def _network(kind, vocabulary):
    from transformers import MPNetConfig, MPNetModel, T5Config, T5EncoderModel, XLMRobertaConfig, XLMRobertaModel

    shape = {"vocab_size": vocabulary, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "mpnet":
        return MPNetModel(MPNetConfig(**shape, intermediate_size=16))
    if kind == "xlm-r":
        return XLMRobertaModel(XLMRobertaConfig(**shape, intermediate_size=16, max_position_embeddings=40))
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=vocabulary, **sizes))
