"""The application: routes, access, errors, and the engine, which is closed with it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import AsyncIterator, Mapping

from fastapi import Depends, FastAPI, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline

from hierspec import __version__
from hierspec.api import Hierarchy

from . import errors
from .access import STATIC_FILES, Access, refuse_half_characters
from .loading import SameSeedWarning, load, obstacles
from .logs import RequestLog
from .routes import chat, completions, info, responses
from .service import Service
from .settings import ServeSettings
from .wire.common import ErrorAnswer

_ABOUT = "An OpenAI-compatible service with lossless hierarchical speculative decoding."


def create_app(
    settings: ServeSettings | None = None, hierarchies: Mapping[str, Hierarchy] | None = None
) -> FastAPI:
    """Build an application on loaded hierarchies; ``app.state.service`` is the engine behind it.

    Args:
        hierarchies: by name, the default one first; default: as ``settings`` say.

    Raises:
        HierspecError: a model cannot be read.
    """
    settings = settings or ServeSettings()
    hierarchies = hierarchies or load(settings)
    for line in obstacles(hierarchies):
        warnings.warn(line, SameSeedWarning, stacklevel=2)
    service = Service(settings, hierarchies)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    dependencies = [Depends(refuse_half_characters)]
    if settings.api_key:  # Access checks it; this lets /docs ask for it
        dependencies.append(Security(HTTPBearer(auto_error=False)))
    app = FastAPIOffline(  # /docs and /redoc load nothing from other hosts
        title="hierspec",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        dependencies=dependencies,
        responses={"4XX": {"model": ErrorAnswer}},
        static_url=STATIC_FILES,
    )
    app.state.service = service
    app.state.stored_conversations = responses.StoredConversations(settings.store_responses)
    for part in (chat, completions, responses, info):
        app.include_router(part.router)
    errors.install(app)
    app.add_middleware(Access, keys=settings.api_key, max_body=settings.max_body_bytes)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's JavaScript client sends a dozen of its own
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.add_middleware(RequestLog)
    return app
