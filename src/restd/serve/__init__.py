"""An HTTP service for a trained model: search, recommend, explain; batched, bounded, reloadable."""

from restd.serve.app import make_app
from restd.serve.limits import Limits
from restd.serve.model_state import ServedModel, ServerState
from restd.serve.server import serve

__all__ = ["Limits", "ServedModel", "ServerState", "make_app", "serve"]
