"""``Hierarchy``: models wired into a hierarchy, and the ways to generate with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Never

import torch

from hierspec.config import arguments
from hierspec.config.build import Built, build
from hierspec.config.call import CallOptions
from hierspec.config.model_defaults import add_tokenizer_eos
from hierspec.config.schema import HierarchyConfig
from hierspec.core.nodes import describe
from hierspec.engine.caches import SessionCache
from hierspec.engine.control import Controller
from hierspec.engine.generation import Generation
from hierspec.engine.results import GenerationResult, TokenEvent
from hierspec.engine.streamers import tee_to_streamer, validate_single_sequence
from hierspec.errors import HierspecError
from hierspec.planner.plan import Plan
from hierspec.utils.schema import validate_keys
from hierspec.utils.turns import TurnLock
from hierspec.verifiers.soundness import validate as validate_soundness

AnyPrompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
_ROUND_WITHIN_A_ROUND = (
    "a logits processor or an observer has called the hierarchy that called it, whose models are "
    "in the middle of a round: let it call another Hierarchy over the same model"
)


class Hierarchy:
    """A target model and the levels that draft for it.

    ``controller`` (``None``: every round runs the whole hierarchy as configured) chooses levels
    and budgets before each round: :class:`hierspec.planner.online.controller.OnlineController`.

    Safe to call from several threads: rounds of different calls take turns.

    >>> import hierspec
    >>> fast = hierspec.Hierarchy.from_preset("hierarchy")          # the shipped family
    >>> result = fast.generate("def add(a, b):", max_new_tokens=32)
    >>> result.num_tokens
    32
    """

    def __init__(
        self,
        target: Any,
        tokenizer: Any = None,
        *,
        drafts: Any = None,
        free_model: bool = False,
        controller: Controller | None = None,
        **unknown: Never,
    ) -> None:
        """Load the models, or take those that are loaded.

        Args:
            target: the model whose text is wanted, loaded by transformers (or peft), or its name.
                On a CPU a loaded model's weights are copied into the compiled kernels, if they run
                it; else its own layers run. Also what :meth:`from_config` takes, or a hierarchy
                that is built already; these have drafts of their own.
            tokenizer: for texts; default: the one saved beside the model.
            drafts: what drafts for it, smallest first (:func:`hierspec.config.drafts.levels`):
                loaded models or names, ``"ngram"``, ``"exit:4"``, levels; ``[]``: plain decoding.
                Default: the best that needs no model of yours, without measuring
                (:func:`hierspec.presets.defaults.default_hierarchy`), as on the command line.
            free_model: let the weights of a loaded target go when the kernels have them, so that
                they are in memory once. The model cannot be used any more then, and says so.

        Raises:
            HierspecError: a model that cannot be driven, or of another vocabulary; an argument that
                does not exist, with what it is called here.
        """
        arguments.refuse_unknown_arguments(unknown)
        if not isinstance(target, Built):
            from hierspec.presets.defaults import configuration_of

            target = build(configuration_of(target, drafts, free_model), tokenizer=tokenizer)
        elif tokenizer is not None or free_model or drafts is not None:
            raise HierspecError(
                "a built hierarchy has its tokenizer, its model and its drafts: leave tokenizer, "
                "free_model and drafts out"
            )
        self.config = target.config
        self.tokenizer = target.tokenizer
        self.root = target.root
        self.eos_ids = target.eos_ids
        self.controller = controller
        self.plan: Plan | None = None  # of auto: the planner's choice, its price and the runners-up
        self._watches = target.watches
        self._checked: list[tuple[bool, Controller | None]] = []  # that are sound
        self._lock = TurnLock(_ROUND_WITHIN_A_ROUND)
        self._process = os.getpid()

    @classmethod
    def from_config(
        cls, config: HierarchyConfig | Mapping[str, Any] | str | Path, *, tokenizer: Any = None
    ) -> Hierarchy:
        """Load a hierarchy file (path, inline JSON or mapping), or a preset by its name.

        In a mapping, loaded models may stand wherever a file has the name of one.

        Raises:
            HierspecError: with what is wrong and how to fix it.
        """
        from hierspec.presets.registry import AUTO, PRESETS

        if isinstance(config, str) and config in (*PRESETS, AUTO):
            return cls.from_preset(config, tokenizer=tokenizer)
        if not isinstance(config, HierarchyConfig):
            config = HierarchyConfig.load(config)
        return cls(build(config, tokenizer=tokenizer))

    @classmethod
    def from_preset(cls, name: str, *, tokenizer: Any = None, **models: Any) -> Hierarchy:
        """Load a preset by name; ``target=`` and ``drafts=`` (smallest first) replace its models.

        Both take loaded models and names. ``auto`` takes the options of :meth:`auto`.
        """
        from hierspec.presets.registry import AUTO, preset, validate_num_drafts

        if name == AUTO:
            names = ["target", "drafts", "temperature", "chat", "online", "measure_again", "report"]
            if tokenizer is not None:
                raise HierspecError(arguments.AUTO_TOKENIZER)
            return cls.auto(**validate_keys(models, names, "options"))
        validate_keys(models, ["target", "drafts"], "options")
        drafts = arguments.model_names(models.get("drafts", ()), "drafts")
        validate_num_drafts(name, len(drafts))
        config = preset(name, models.get("target"), drafts)
        return cls.from_config(config, tokenizer=tokenizer)

    @classmethod
    def auto(
        cls,
        target: Any = None,
        drafts: Any = None,
        *,
        temperature: float = 0.0,
        chat: bool = False,
        online: bool = True,
        measure_again: bool = False,
        report: Callable[[str, float], None] = lambda stage, share: None,
        **unknown: Never,
    ) -> Hierarchy:
        """Choose the fastest hierarchy of these models on this machine, as the planner finds it.

        The first use measures the models, for seconds to a minute by their size, and keeps the
        profile in the user's cache; later ones only plan. While text is written, what it shows of
        acceptance corrects the plan.

        Args:
            target: a name, a loaded model or a TargetConfig; default: the shipped ``zoo:large``.
                Its tokenizer is the one saved beside it, of a loaded model in the folder that its
                ``config.name_or_path`` names.
            drafts: loaded models, or candidates as ``hierspec profile --candidates`` takes them;
                models are measured beside drafters that need none (look-ups, copies of the target
                in fewer bits), unless the list names such a drafter: then it is the whole list.
                Default: the shipped family; for any other target what copies text, its copies in
                fewer bits, and what is shipped for it.
            temperature: of the requests to come: acceptance depends on it. 0 is greedy.
            chat: whether they are questions in the target's chat template.
            online: let budgets and levels adapt during generation
                (:mod:`hierspec.planner.online.controller`).
            measure_again: measure anew, for instance on a machine that was busy the first time.
            report: called with what is being measured, in a second line the plan of what is known
                so far, and the share of the work that is done. Who interrupts it (Ctrl-C) finds the
                file of that plan, which :meth:`from_config` loads, in the exception's notes.
        """
        from hierspec.planner.online.controller import OnlineController
        from hierspec.profiling.auto import choose

        if "tokenizer" in unknown or arguments.is_tokenizer(drafts):
            raise HierspecError(arguments.AUTO_TOKENIZER)
        arguments.refuse_unknown_arguments(unknown)
        target_config = arguments.target(target)
        names = () if drafts is None else arguments.model_names(drafts, "drafts")
        choice = choose(
            target_config,
            names,
            temperature=temperature,
            chat=chat,
            measure_again=measure_again,
            report=report,
        )
        if not online or choice.control.plain:
            built, controller = build(choice.config, choice.loaded), None
        else:
            built = build(choice.hierarchy(choice.control), choice.loaded)
            controller = OnlineController(built.root, choice.plan.estimates, choice.control)
        hierarchy = cls(built, controller=controller)
        hierarchy.plan = choice.plan
        return hierarchy

    @property
    def outdated(self) -> bool:
        """Whether a loaded model has changed since its weights were copied."""
        return any(watch.changed() for watch in self._watches)

    @property
    def lock(self) -> TurnLock:
        """Held while a round of some call runs; others that run the models wait for it."""
        return self._lock

    def generate(self, prompt: AnyPrompt = (), **options: Any) -> GenerationResult:
        """Continue one prompt, and wait for the whole text.

        Args:
            prompt: a text, token ids, or a conversation; an empty one is refused.
            options: as :meth:`start` explains them. Length and ends: ``max_new_tokens``, ``stop``,
                ``include_stop_str``, ``stop_token_ids``, ``eos_token_id``, ``ignore_eos``,
                ``until``, ``stopping_criteria``; sampling: ``temperature`` (0, the default, is
                greedy), ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty``,
                ``frequency_penalty``, ``presence_penalty``, ``logit_bias``,
                ``logits_processors``, all of them as ``sampling`` or ``generation_config``, and
                ``seed``; the prompt: ``chat``, ``tools``, ``chat_template_kwargs``; what comes out:
                ``logprobs``, ``num_return_sequences``, ``streamer``, ``tracer``, ``observers``; and
                ``cache``.

        Returns:
            the text, its token ids, why it ended, and how fast it was.
        """
        streamer = options.pop("streamer", None)
        generation = self.start([prompt], **options)
        if (number := len(generation.requests)) > 1:
            raise HierspecError(
                f"generate returns one result, and {number} were asked for: use "
                "generate_batch([prompt], num_return_sequences=...)"
            )
        return _run(generation, streamer)[0]

    def generate_batch(
        self, prompts: Iterable[AnyPrompt] | None = None, **options: Any
    ) -> list[GenerationResult]:
        """Continue several prompts together; sequence i has the randomness of (seed, i).

        The options are those that :meth:`generate` lists; ``streamer``, one of transformers', goes
        with a single prompt.
        """
        streamer = options.pop("streamer", None)
        return _run(self.start(prompts, **options), streamer)

    def stream(self, prompt: AnyPrompt = (), **options: Any) -> Iterator[TokenEvent]:
        """Continue one prompt, an event a token; the options are those of :meth:`generate`.

        Abandoning the iterator frees everything.
        """
        return iter(self.start([prompt], **options))

    async def astream(self, prompt: AnyPrompt = (), **options: Any) -> AsyncIterator[TokenEvent]:
        """Stream for asyncio: rounds run in a thread, and the event loop goes on meanwhile.

        Leaving the loop early, or cancelling the task, ends the generation when its round has
        ended, and frees everything.
        """
        # One thread, so that ``close``, which comes last, waits for the round that is running.
        thread = ThreadPoolExecutor(1, "hierspec")
        try:
            loop = asyncio.get_running_loop()
            events: Any = await loop.run_in_executor(thread, lambda: self.stream(prompt, **options))
            try:
                while (event := await loop.run_in_executor(thread, next, events, None)) is not None:
                    yield event
            finally:
                thread.submit(events.close)
        finally:
            thread.shutdown(wait=False)

    def session(self) -> Session:
        """Return a session for a text that grows call by call, such as a conversation."""
        return Session(self)

    def start(self, prompts: Iterable[AnyPrompt] | None = None, **options: Any) -> Generation:
        """Prepare a batch to run: iterate it for events, then ask ``results()``.

        Args:
            prompts: texts, token ids (lists, or one-dimensional tensors), or conversations: lists
                of messages with ``role`` and ``content``, put through the chat template.
            options: the fields of :class:`hierspec.config.call.CallOptions`, which explains them,
                and those of :class:`SamplingParams`.

        Raises:
            HierspecError: an empty prompt, one longer than the context, a rule that would change
                the output law, a parameter out of range, or one that says what another says too; a
                loaded model has changed since its weights were copied; the process was forked from
                the one that made the hierarchy.
        """
        if os.getpid() != self._process and torch.get_num_threads() > 1:
            raise HierspecError(
                "this process was forked from the one that made the Hierarchy, without torch's "
                "threads: call torch.set_num_threads(1) in it, or make the Hierarchy in a process "
                'that was started by "spawn"'
            )
        call = CallOptions.of(options)
        requests = call.requests(prompts, self.root.model, self.tokenizer, self.eos_token_ids())
        self.validate(greedy=all(request.params.greedy for request in requests))
        return Generation(
            self.root,
            requests,
            tokenizer=self.tokenizer,
            lock=self._lock,
            tracer=call.tracer,
            observers=call.observers,
            controller=self.controller,
        )

    def validate(self, *, greedy: bool) -> None:
        """Refuse to write texts that would not be the target's.

        Args:
            greedy: whether all of them are; some rules are lossless in greedy decoding alone.

        Raises:
            HierspecError: a rule would change the output law, or a loaded model has changed since
                its weights were copied.
        """
        for watch in self._watches:
            watch.check()
        if (kind := (greedy, self.controller)) not in self._checked:
            for plan in [self.root] if self.controller is None else self.controller.plans:
                validate_soundness(plan, greedy=greedy, allow_lossy=self.config.allow_lossy)
            self._checked.append(kind)

    def eos_token_ids(self) -> frozenset[int]:
        """Return the tokens that end a text: the model's and the tokenizer's."""
        return add_tokenizer_eos(self.eos_ids, self.tokenizer)

    def __reduce__(self) -> Never:
        """Refuse copying and pickling: models hold memory that only their own process has."""
        raise HierspecError(
            "a Hierarchy cannot be copied or pickled: load it again from its config, "
            "Hierarchy(hierarchy.config)"
        )

    def __copy__(self) -> Hierarchy:
        """Return another one of the same models, at which a controller may be set."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __repr__(self) -> str:
        return f"Hierarchy(\n{describe(self.root)}\n)"


def _run(generation: Generation, streamer: Any) -> list[GenerationResult]:
    """Run a generation to its end, with a streamer of transformers' or ``None``."""
    with contextlib.closing(iter(generation)) as events:  # a streamer may fail
        told: Iterator[TokenEvent] = events
        if streamer is not None:
            validate_single_sequence(len(generation.requests))
            told = tee_to_streamer(events, streamer, generation.requests[0].tokens)
        for _ in told:
            pass
    return generation.results()


class Session:
    """A text that grows call by call: the prefix it shares with the last call is not prefilled
    again.

    Give the whole text each time (a conversation with all its messages); the models' caches are
    rewound to where it differs. The output is the same as without a session, up to rounding
    (:class:`~hierspec.engine.caches.SessionCache`). One call at a time; leaving a ``with`` block,
    or :meth:`close`, frees the caches.

    >>> import hierspec
    >>> with hierspec.Hierarchy.from_preset("hierarchy").session() as session:
    ...     first = session.generate("def add(a, b):", max_new_tokens=8)
    ...     second = session.generate("def add(a, b):" + first.text + "\\n", max_new_tokens=8)
    >>> second.num_tokens
    8
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        self.cache = SessionCache()

    def generate(self, prompt: Any = (), **options: Any) -> GenerationResult:
        return self.hierarchy.generate(prompt, cache=self.cache, **options)

    def stream(self, prompt: Any = (), **options: Any) -> Iterator[TokenEvent]:
        return self.hierarchy.stream(prompt, cache=self.cache, **options)

    def astream(self, prompt: Any = (), **options: Any) -> AsyncIterator[TokenEvent]:
        return self.hierarchy.astream(prompt, cache=self.cache, **options)

    def start(self, prompt: Any = (), **options: Any) -> Generation:
        """See :meth:`hierspec.Hierarchy.start`, for one prompt."""
        return self.hierarchy.start([prompt], cache=self.cache, **options)

    def close(self) -> None:
        """Free the caches. The session may be used again, and then prefills the whole text."""
        self.cache.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
