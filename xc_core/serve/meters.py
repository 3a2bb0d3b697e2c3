"""The server's metrics for Prometheus, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from xc_core.serve.batcher import Answers
from xc_core.serve.models import Refusal, Served, Watch

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_TENTHS = tuple(step / 10 for step in range(1, 11))
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meters:
    """All metrics of a server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("xc_requests", "Requests by path and status.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "xc_request_seconds", "Seconds of a request.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.in_flight = Gauge("xc_requests_in_flight", "Requests that are being answered.", registry=registry)
        self.texts = Counter("xc_texts", "Texts that were answered.", registry=registry)
        self.unlabelled = Counter("xc_texts_without_label", "Texts whose answer has no label.", registry=registry)
        self.probability = Histogram(
            "xc_largest_probability", "Largest probability of a text's labels.", buckets=_TENTHS, registry=registry
        )
        self.pass_texts = Histogram("xc_pass_texts", "Texts that shared a pass.", buckets=_TEXTS, registry=registry)
        self.pass_seconds = Histogram("xc_pass_seconds", "Seconds of a pass.", buckets=_SECONDS, registry=registry)
        self.queue = Gauge("xc_queue_texts", "Texts that wait for the model.", registry=registry)
        self.model = Info("xc_model", "The model that answers.", registry=registry)
        self.swaps = Counter("xc_model_swaps", "Models loaded, the first one included.", registry=registry)
        self.load_seconds = Gauge("xc_model_load_seconds", "Seconds that loading the model took.", registry=registry)
        self.refused = Counter("xc_model_refusals", "Attempts to load a new model that failed.", registry=registry)
        self.stale = Gauge("xc_model_refused", "1 while the champion cannot be loaded and an old model answers.",
                           registry=registry)  # fmt: skip
        self.unanswered = Counter("xc_registry_errors", "Times that the registry did not answer.", registry=registry)

    def watch(self) -> Watch:
        """Return what the models report to."""
        return Watch(self._swapped, self._refused, self.unanswered.inc)

    def passed(self, texts: int, seconds: float) -> None:
        """Count a pass through the model."""
        self.texts.inc(texts)
        self.pass_texts.observe(texts)
        self.pass_seconds.observe(seconds)

    def answered(self, answers: Answers) -> None:
        """Count texts without a label, and the largest probability of each other one: how sure the model is."""
        for labels in answers:
            known = [label.probability for label in labels if label.probability is not None]
            if known:
                self.probability.observe(max(known))
            elif not labels:
                self.unlabelled.inc()

    def text(self, waiting: int, refusal: Refusal | None) -> bytes:
        """Return all metrics as Prometheus reads them."""
        self.queue.set(waiting)
        self.stale.set(refusal is not None)
        return generate_latest(self.registry)

    def _swapped(self, served: Served, seconds: float) -> None:
        self.swaps.inc()
        self.load_seconds.set(seconds)
        self.model.info(served.name)

    def _refused(self, refusal: Refusal) -> None:
        self.refused.inc()
