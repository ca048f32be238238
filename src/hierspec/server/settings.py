"""The operator's settings: one schema for the file, the environment and the command line.

``sources`` reads them from there; settings made in Python read nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, WrapValidator

from hierspec.errors import HierspecError
from hierspec.utils.schema import Boolean, Expected, NonEmptyString, checked_dataclass

if TYPE_CHECKING:
    from hierspec.config.schema import HierarchyConfig


DEFAULT_TEMPERATURE = 1.0  # of requests that leave it out, as OpenAI's


def _split_at_commas(value: Any) -> Any:
    """Split a string, the form of a list in the environment; return any other value unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _unseen(value: Any, validate: Any) -> Any:
    """Check keys, with an error that does not show them: errors are logged."""
    try:
        return validate(value)
    except ValidationError:
        raise ValueError("keys are non-empty strings") from None


Strings = Annotated[tuple[NonEmptyString, ...], BeforeValidator(_split_at_commas)]
Keys = Annotated[Strings, WrapValidator(_unseen)]
Hierarchies = Annotated[
    dict[str, NonEmptyString],
    BeforeValidator(_or_empty),
    Expected("an object of presets or hierarchy files by name"),
]
# Texts of numbers are numbers, as they have always been in files.
Port = Annotated[int, Field(ge=0, le=65535), Expected("an integer from 0 to 65535")]
AtLeastOne = Annotated[int, Field(ge=1), Expected("an integer of at least 1")]
Duration = Annotated[float, Field(ge=0.0), Expected("a number of at least 0")]


@checked_dataclass
class ServeSettings:
    """Everything about a service.

    Attributes:
        model: the target: a directory, a hub id, ``FILE.gguf``, or ``zoo:NAME``; default:
            ``zoo:smollm2`` if its packages are installed, else ``zoo:large``, the largest of the
            shipped family.
        hierarchy: a preset or a hierarchy file, for requests that name none. Default: the preset
            ``hierarchy`` if draft models are named or the target is of the shipped family; else
            what is likely the best drafter that needs no other model.
        hierarchies: further hierarchies by name, which requests may ask for.
        draft: draft models of presets, smallest first.
        tokenizer: of a target that has none: a folder with one, or a model.
        measure_again: for the hierarchy ``auto``: measure again, even if a profile is stored.
        dtype: of the weights: ``float32``, ``bfloat16``, … or ``auto``.
        device: ``cpu``, ``cuda``, … or ``auto``.
        threads: of torch; default: torch's own choice, usually one for each physical core.
        served_model_name: what ``/v1/models`` says; default: the target's name.
        host: to listen on. Beyond loopback, an API key is required.
        port: to listen on; 0: any free one.
        api_key: keys, of which a request must send one; none: open to all.
        allow_without_key: listen beyond loopback without a key.
        cors_origin: origins whose web pages may send requests; none by default.
        max_body_bytes: of a request.
        max_prompt_tokens: limit of a prompt; default: as many as the context holds.
        max_tokens_default: limit of a chat or a Response whose request sets none.
        max_num_seqs: sequences in rounds at once.
        max_queue: requests that may wait; more are answered with 429.
        max_cache_tokens: tokens in all caches; default: what fits into ``40 %`` of the memory that
            is free after loading.
        max_choices: ``n`` times the number of prompts of one request.
        prefill_chunk: prompt tokens read between two rounds.
        prefix_caching: keep the caches of ended texts for texts with the same prefix.
        adapt_to_load: let drafts be shorter where many streams make that faster.
        request_timeout: seconds that a request may take; 0: no limit.
        stall_timeout: seconds that a step of the engine may take (a round, or a chunk of a prompt)
            before ``/health`` is 503; 0: no limit.
        shutdown_grace: seconds for running requests to finish at shutdown.
        store_responses: how many responses are kept for ``previous_response_id``; 0: none.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        log_format: ``json``, a line an event, or ``text``.
        otlp_endpoint: where OpenTelemetry traces go (extra ``otel``); none by default.
    """

    model: NonEmptyString | None = None
    hierarchy: NonEmptyString | None = None
    hierarchies: Hierarchies = dataclasses.field(default_factory=dict)
    draft: Strings = ()
    tokenizer: NonEmptyString | None = None
    measure_again: Boolean = False
    dtype: NonEmptyString = "auto"
    device: NonEmptyString = "auto"
    threads: AtLeastOne | None = None
    served_model_name: NonEmptyString | None = None
    host: NonEmptyString = "127.0.0.1"
    port: Port = 8000
    api_key: Keys = ()
    allow_without_key: Boolean = False
    cors_origin: Strings = ()
    max_body_bytes: AtLeastOne = 4 << 20
    max_prompt_tokens: AtLeastOne | None = None
    max_tokens_default: AtLeastOne = 512
    max_num_seqs: AtLeastOne = 64
    max_queue: AtLeastOne = 256
    max_cache_tokens: AtLeastOne | None = None
    max_choices: AtLeastOne = 128
    prefill_chunk: AtLeastOne = 256
    prefix_caching: Boolean = True
    adapt_to_load: Boolean = True
    request_timeout: Duration = 600.0
    stall_timeout: Duration = 120.0
    shutdown_grace: Duration = 20.0
    store_responses: Annotated[int, Field(ge=0), Expected("an integer of at least 0")] = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "text"
    otlp_endpoint: NonEmptyString | None = None

    def validate_exposure(self) -> None:
        """Refuse to be reached from other machines without a key, unless the settings allow it."""
        if self.api_key or self.allow_without_key or _is_loopback(self.host):
            return
        raise HierspecError(
            f"{self.host} can be reached from other machines and no API key is set: set "
            "HIERSPEC_SERVE_API_KEY, listen on 127.0.0.1, or say --allow-without-key"
        )

    @property
    def target(self) -> str:
        """The model served: ``model`` if it is set; else ``zoo:smollm2`` if its packages are
        installed; else the largest of the shipped family."""
        from hierspec.presets.defaults import default_target

        return self.model or default_target()

    def configuration(self, hierarchy: str | None) -> HierarchyConfig:
        """Return a hierarchy by name (not ``auto``): a preset, a file, or the default for ``None``.

        It is only read and checked: torch is not loaded.

        Raises:
            HierspecError: there is no such hierarchy, or one of its models does not exist.
        """
        from hierspec.presets import defaults
        from hierspec.presets.registry import is_file_or_json, read_hierarchy

        dtype, device = (None if word == "auto" else word for word in (self.dtype, self.device))
        if hierarchy is None:
            return defaults.choose_default(self.target, self.draft, dtype, device).config
        target = self.model if is_file_or_json(hierarchy) else self.target
        return read_hierarchy(
            hierarchy, target, self.draft, dtype, device, ignore_unused=bool(self.hierarchies)
        )

    def validate_address(self) -> None:
        """Check that a service can listen there, before its models are loaded.

        Raises:
            HierspecError: the port is in use, or the address is not this machine's.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            family, kind, *_, address = found[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            fix = "another --port (0: any free one)" if in_use else "another --host or --port"
            raise HierspecError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}: name {fix}"
            ) from None

    def validate_models(self) -> None:
        """Refuse models and hierarchies that do not exist, before anything is loaded."""
        from hierspec.config.schema import validate_dtype
        from hierspec.config.target import validate_model_name
        from hierspec.presets.registry import AUTO, TOKENIZER_WITH_AUTO

        validate_model_name(self.target)
        validate_dtype(self.dtype)
        names = (self.hierarchy, *self.hierarchies.values())
        if self.measure_again and AUTO not in names:
            raise HierspecError("measure_again is for --hierarchy auto: nothing else is measured")
        if self.tokenizer is not None and AUTO in names:
            raise HierspecError(TOKENIZER_WITH_AUTO)
        for name in names:
            if name not in (None, AUTO):
                self.configuration(name)


FIELDS = {field.name: field for field in dataclasses.fields(ServeSettings)}


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
