"""Stage fusion: fits the fusion on candidates and positives of validation documents that no score has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xc_core.artifacts import read_made
from xc_core.chain.context import Context
from xc_core.data.corpus import Corpus
from xc_core.data.embeddings import Embeddings
from xc_core.data.labels import LabelMatrix
from xc_core.data.splits import VALIDATION
from xc_core.errors import MovedError
from xc_core.fusion import FittedFusion, Fusion, Inputs, summed
from xc_core.fusion.by_sum import too_costly
from xc_core.fusion.dial import fit_dial
from xc_core.fusion.fallback import better_part
from xc_core.fusion.inputs import RULE, SUM
from xc_core.infer.ablation import METRICS
from xc_core.infer.gathered import Candidates, HeldOut, gather_each, second_half
from xc_core.metrics.evaluation import FUSION
from xc_core.metrics.ranking import PerDocument, of_each, per_document
from xc_core.metrics.report import in_bins
from xc_core.metrics.validation import copy_validation, write_validation
from xc_core.recipes.settings import FusionSettings, inputs_of
from xc_core.scores import Scores
from xc_core.shapes import F64, I64, PAD_ID, Bool, Shortlist


def run(context: Context[FusionSettings]) -> None:
    """Gather candidates, fit, and compare with each score alone by two-fold cross-fitting."""
    settings, corpus, scores = context.settings, context.read(Corpus), context.read(Scores)
    inputs = inputs_of(scores.parts)
    held_out = HeldOut.of_all(corpus, scores.folds, settings.rows)
    if not any(len(subset.rows) for subset in held_out):
        _without_validation(context, inputs)
        return
    rows_N, gathered = _gather(context, corpus, scores, held_out)
    weights_L, bins = corpus.weights(), dict(in_bins(corpus.published_train().frequency_L()))
    fitted = gathered.fit(settings.rule, inputs, weights_L)
    fitted = replace(fitted, candidates=settings.candidates, offsets=inputs.offsets)
    families_N = corpus.families(rows_N)
    ranked = _rankings(settings.rule, inputs, gathered, weights_L, fitted, families_N)
    if settings.new_by_sum and FUSION in ranked:
        fitted, ranked = _raised(context, inputs, gathered, weights_L, fitted, ranked, second_half(families_N))
    measured = of_each(ranked, gathered.truth, weights_L, bins)
    documents = {name: values.only(METRICS) for name, values in measured.items()}
    compared = {name: values.total() for name, values in documents.items()}
    replacement = _replacement(settings, compared, documents)
    served = fitted.part(replacement) if replacement else fitted
    figures: dict[str, float] = {}
    if replacement or FUSION in ranked or not settings.rule.learns:  # otherwise the rule has seen all documents
        unseen_ranking = ranked.get(replacement or FUSION) or gathered.rank(served)
        served, turned = _with_dial(context, served, unseen_ranking, gathered.truth, weights_L)
        measured = {RULE if name == FUSION else name: values for name, values in measured.items()}
        measured[FUSION] = per_document(turned, gathered.truth, weights_L, bins)
        figures = measured[FUSION].only(METRICS).total()
    served.write(context.build.path)
    write_validation(context.build, rows_N, measured)
    context.build.facts |= {
        "documents": len(gathered.truth),
        "revealing_labels": {subset.fold: int(subset.revealing_L.sum()) for subset in held_out},
        "pairs": int((gathered.ids_NK != PAD_ID).sum()),
        "rule": settings.rule.kind,
        "served": replacement or FUSION,
        "figures": figures,
        "validation": compared,
    }
    _report(context, compared, replacement, at_zero=", the dial (tail) at 0" if served.turns else "")


def _gather(
    context: Context[FusionSettings], corpus: Corpus, scores: Scores, held_out: list[HeldOut]
) -> tuple[I64, Candidates]:
    """Return the rows of all held-out documents, sorted, and their candidates in this order."""
    embeddings, k = context.read(Embeddings), context.settings.candidates
    parts = gather_each(held_out, corpus, embeddings, scores, k, lambda part, fitted, query: part)
    rows = np.concatenate([subset.rows for subset in held_out])
    return np.sort(rows), Candidates.concat(parts, rows)


def _report(
    context: Context[FusionSettings], compared: dict[str, dict[str, float]], replacement: str | None, at_zero: str
) -> None:
    """Report the figures of each ranking, and the ``replacement`` of the rule if there is one."""
    shown = ", ".join(f"{name} {value['P_at_1']:.1f} / {value['PSP_at_5']:.1f}" for name, value in compared.items())
    context.report(f"fusion: P@1 / PSP@5 on validation, cross-fitted{at_zero}: {shown}")
    if replacement and FUSION in compared:
        names = (replacement, FUSION)
        part, rule = (" / ".join(f"{compared[name][metric]:.1f}" for metric in METRICS) for name in names)
        context.report(
            f"fusion: {replacement} alone is better than the rule (P@1 / P@5 / PSP@5 {part} against {rule}; "
            "the rule is clearly better in none), so it is used instead"
        )
    elif replacement:
        context.report(f"fusion: too few validation documents to test the rule on, so {replacement} is used instead")


def extend(context: Context[FusionSettings]) -> None:
    """Give labels that are new at the end the weight of labels without documents; the rule and its figures stay."""
    previous = FittedFusion.open(context.previous)
    dial = None if previous.dial is None else previous.dial.extended(context.read(Corpus).weights())
    replace(previous, dial=dial).write(context.build.path)
    copy_validation(context.previous, context.build.path)
    context.build.facts |= read_made(context.previous).facts


def _with_dial(
    context: Context[FusionSettings], fusion: FittedFusion, ranked: Shortlist, truth: LabelMatrix, weights_L: F64
) -> tuple[FittedFusion, Shortlist]:
    """Return ``fusion`` with a dial fitted on ``ranked``, documents it has not seen; report the curve.

    The returned ranking is the one at the default position of the dial, as the model is served.
    """
    fit = fit_dial(ranked, truth, weights_L, context.settings.tail_cost)
    if fit is None:
        context.report(
            "fusion: no dial between P@k and PSP@k (--tail): the candidates have too few positives, or the fused score "
            "does not tell them from other candidates"
        )
        return fusion, ranked
    dial, curve = fit
    context.build.facts["tail"] = {"default": dial.default, "reach": dial.reach, "curve": curve}
    if dial.reach:
        shown = [point for point in curve if point in curve[::2] or point["tail"] == dial.default]
        points = ", ".join(f"{point['tail']:g}: {point['P_at_1']:.1f} / {point['PSP_at_5']:.1f}" for point in shown)
        context.report(f"fusion: P@1 / PSP@5 at positions of the dial (tail): {points}; default {dial.default:g}")
    else:
        context.report("fusion: no weight of rare labels raises PSP@5 on validation, so the dial (tail) has no effect")
    turned = Shortlist.ranked(ranked.ids_NK, dial.turned(ranked.ids_NK, ranked.scores_NK, dial.default))
    return replace(fusion, dial=dial), turned


def _replacement(
    settings: FusionSettings, compared: dict[str, dict[str, float]], documents: dict[str, PerDocument]
) -> str | None:
    """Return the part that is served instead of the rule, or None.

    It is a better one; or, if all documents are of one family so that the rule cannot be cross-fitted, the sum.
    """
    if not settings.fallback or not settings.rule.learns:
        return None
    if FUSION not in compared:
        return SUM if SUM in compared else next(iter(compared), None)
    return better_part(FUSION, compared, documents)


def _without_validation(context: Context[FusionSettings], inputs: Inputs) -> None:
    """Write the sum of the scores, because a rule is only fitted on validation documents that no score has seen.

    Raises MovedError if there are validation documents and the scores were trained on all of them.
    """
    if not len(context.read(Corpus).rows(VALIDATION)):
        context.report("fusion: there are no validation documents, so no rule is fitted and the scores are summed")
    elif context.settings.rule.learns:
        raise MovedError(
            f"the fusion {context.settings.rule.kind!r}, and scores that were trained on all validation documents",
            expected="scores that have not seen the documents that the fusion is fitted on",
            do="train the encoder with encoder.refit=false, or set fusion.rule=sum",
        )
    else:
        context.report("fusion: the scores were trained on all validation documents, so nothing is measured on them")
    plain = summed(context.settings.rule, inputs)
    replace(plain, candidates=context.settings.candidates, offsets=inputs.offsets).write(context.build.path)
    context.build.facts |= {"documents": 0, "pairs": 0, "rule": "sum", "validation": {}}


def _rankings(
    rule: Fusion, inputs: Inputs, gathered: Candidates, weights_L: F64, fitted: FittedFusion, families_N: I64
) -> dict[str, Shortlist]:
    """Rank by each score, by their sum, and by the fusion fitted on the other half of the families.

    ``fitted.rule`` may be another one: a rule can hand its fit over, for instance to the sum if there are few pairs.
    """
    ranked = {name: gathered.rank(part) for name, part in fitted.parts().items()}
    if rule.learns and families_N.max() > 0:
        ranked[FUSION] = gathered.cross_fit(
            rule, inputs, weights_L, second_half(families_N), fitted if rule.any_level() else None
        )
    return ranked


def _raised(
    context: Context[FusionSettings],
    inputs: Inputs,
    gathered: Candidates,
    weights_L: F64,
    fitted: FittedFusion,
    ranked: dict[str, Shortlist],
    second_N: Bool,
) -> tuple[FittedFusion, dict[str, Shortlist]]:
    """Return the fusion and its rankings with labels without train documents raised, if documents show that it is safe.

    They show nothing if they have no such candidates; then nothing changes.
    """
    rule = context.settings.rule
    if not inputs.counts or gathered.values_NKF[..., inputs.names.index(inputs.counts)][gathered.found_NK].all():
        return fitted, ranked
    raised = fitted.with_by_sum(inputs, gathered.pairs(rule, weights_L, slice(None)))
    if raised.by_sum is None:
        return fitted, ranked
    level = raised if rule.any_level() else None
    ranking = gathered.cross_fit(rule, inputs, weights_L, second_N, level, raises_new=True)
    with_it, without = (per_document(one, gathered.truth, weights_L).only(METRICS) for one in (ranking, ranked[FUSION]))
    costly = too_costly(with_it, without, context.settings.tail_cost)
    context.build.facts["new_by_sum"] = {"used": not costly, "raised": with_it.total(), "rule": without.total()}
    figures = [" / ".join(f"{one.total()[metric]:.1f}" for metric in METRICS) for one in (with_it, without)]
    context.report(
        f"fusion: labels without train documents {'are not' if costly else 'are'} raised by their plain sum: P@1 / "
        f"P@5 / PSP@5 on validation {figures[0]} with it, {figures[1]} without; clearly worse by more than "
        f"{context.settings.tail_cost:g} (tail_cost) in {', '.join(costly) or 'none'}"
    )
    return (fitted, ranked) if costly else (raised, ranked | {FUSION: ranking})
