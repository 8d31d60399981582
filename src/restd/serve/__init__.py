"""An HTTP service for a trained model: search, recommend, explain; batched, bounded, reloadable."""

from restd.serve.app import make_app
from restd.serve.limits import Limits
from restd.serve.model_state import ModelSource, ServedModel, ServerState
from restd.serve.server import serve

__all__ = ["Limits", "ModelSource", "ServedModel", "ServerState", "make_app", "serve"]
