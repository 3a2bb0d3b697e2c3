"""Which tests judge the mutants of which package: one table, fast tests first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scope:
    """A package, or single modules of one, and the tests that have to see a bug in it."""

    name: str
    tests: tuple[str, ...]
    """Files and folders in the order in which they run, after those named after the module; a failure ends the run."""
    left_out: tuple[str, ...] = ()
    """Tests that take too long to run for every mutant."""


SETTINGS = ("tests/contracts/test_settings_contract.py", "tests/contracts/test_part_folders.py")
"""Judge every package with settings of parts or stages."""

SCOPES = (
    Scope("assets/release", ("tests/assets/test_gate.py", "tests/assets/test_release_details.py",
                             "tests/assets/test_registry.py", "tests/assets/test_promotion.py",
                             "tests/assets/test_best.py", "tests/assets/test_pointer.py", "tests/assets/test_copies.py",
                             "tests/assets/test_accepting.py", "tests/assets/test_deleting.py",
                             "tests/assets/test_origin.py", "tests/assets/test_ancestry.py",
                             "tests/pipelines/test_lineage.py",
                             "tests/pipelines/test_release.py", "tests/cli/test_options.py")),
    Scope("assets", ("tests/pipelines/test_jobs.py", "tests/assets", "tests/pipelines/test_stage_calls.py",
                     "tests/pipelines/test_corpus_checks.py", "tests/pipelines/test_experiment_checks.py",
                     "tests/pipelines/test_staleness.py")),
    Scope("pipelines", ("tests/pipelines/test_jobs.py", "tests/pipelines/test_schedules.py",
                        "tests/pipelines/test_sensors.py", "tests/pipelines/test_lost_retries.py",
                        "tests/pipelines/test_alerts.py",
                        "tests/pipelines/test_launcher.py", "tests/pipelines/test_definitions.py",
                        "tests/pipelines/test_studies.py", "tests/pipelines/test_staleness.py",
                        "tests/pipelines/test_instance.py", "tests/pipelines/test_pipeline_commands.py",
                        "tests/cli/test_options.py")),
    Scope("xc_core/ann", ("tests/ann", "tests/contracts/test_index_contract.py", *SETTINGS),
          ("tests/ann/test_bounded_build.py",)),
    Scope("xc_core/chain", ("tests/chain", "tests/lifecycle", "tests/cli/test_update_command.py",
                            "tests/cli/test_ingest_command.py", "tests/pipelines/test_schedules.py")),
    Scope("xc_core/classifiers", ("tests/classifiers", "tests/train/test_train_classifier.py",
                                  "tests/train/test_on_card.py", *SETTINGS)),
    Scope("xc_core/cli", ("tests/cli/test_options.py", "tests/cli/test_reference.py", "tests/cli/test_help.py",
                           "tests/cli/test_numbers.py", "tests/cli/test_refused_arguments.py", "tests/cli",
                           "tests/data/test_place.py", "tests/lifecycle/test_drift.py")),
    Scope("xc_core/cluster", ("tests/cluster", "tests/contracts/test_order_contract.py")),
    Scope("xc_core/data", ("tests/data", "tests/fuzz", "tests/cli/test_ingest_split.py",
                           "tests/cli/test_update_command.py", "tests/infer/test_acceptance.py"),
          ("tests/data/test_bounded_reads.py", "tests/data/test_killed_ingest.py")),
    Scope("xc_core/encoders", ("tests/encoders", "tests/train/test_train_encoder.py", "tests/train/test_on_card.py",
                               "tests/chain/test_resolved.py", *SETTINGS)),
    Scope("xc_core/fusion", ("tests/fusion", "tests/stages/test_fusion_fallback.py",
                               "tests/stages/test_fusion_dial.py", "tests/stages/test_fusion_by_sum.py", *SETTINGS)),
    Scope("xc_core/infer", ("tests/infer", "tests/serve/test_questions.py", "tests/test_bundle.py",
                            "tests/cli/test_predict_command.py", "tests/cli/test_ablate_command.py",
                            "tests/stages/test_fusion_families.py")),
    Scope("xc_core/lifecycle", ("tests/lifecycle", "tests/cli/test_update_command.py",
                                "tests/cli/test_ingest_command.py", "tests/cli/test_forget_command.py",
                                "tests/cli/test_forget_shown.py", "tests/cli/test_replacement.py",
                                "tests/assets/test_resources.py", "tests/assets/test_deleting.py")),
    Scope("xc_core/losses", ("tests/losses", "tests/contracts/test_loss_contract.py", *SETTINGS),
          ("tests/losses/test_bounded_slots.py",)),
    Scope("xc_core/metrics", ("tests/metrics/test_ranking_metrics.py", "tests/metrics")),
    Scope("xc_core/planning", ("tests/planning", "tests/cli/test_plan_command.py")),
    Scope("xc_core/recipes", ("tests/chain/test_resolved.py", "tests/recipes/test_defaults.py",
                              "tests/chain/test_params_read.py", "tests/test_params_parts.py",
                              "tests/planning/test_budget_shortened.py", "tests/chain/test_fingerprints.py",
                              "tests/cli/test_refused_arguments.py", *SETTINGS)),
    Scope("xc_core/sampling", ("tests/sampling", "tests/contracts/test_order_contract.py",
                               "tests/contracts/test_negatives_contract.py", *SETTINGS),
          ("tests/sampling/test_bounded_tree.py", "tests/sampling/test_bounded_search.py")),
    Scope("xc_core/scores", ("tests/scores", "tests/contracts/test_score_contract.py", *SETTINGS)),
    Scope("xc_core/serve", ("tests/serve/test_questions.py", "tests/serve/test_limits.py",
                            "tests/serve/test_batcher.py", "tests/serve/test_models.py",
                            "tests/serve/test_protocol.py", "tests/serve/test_meters.py")),
    Scope("xc_core/stages", ("tests/stages", "tests/lifecycle/test_add_labels.py", "tests/recipes/test_refresh.py")),
    Scope("xc_core/train", ("tests/train", *SETTINGS)),
    Scope("xc_core/tune", ("tests/cli/test_tune_command.py", "tests/tune")),
    Scope("xc_core", (*(f"tests/test_{name}.py" for name in (
        "arrays", "artifacts", "canonical", "causes", "confidential", "devices", "environment", "errors", "git",
        "installation", "leftovers", "linked", "locks", "memory", "outside", "params", "params_parts", "plugins",
        "progress", "seeds", "shapes", "sqlite", "visible", "bundle", "messages", "full_disk")),
        "tests/encoders/test_bad_models.py", "tests/encoders/test_passes.py", "tests/train/test_distributed.py",
        "tests/plugins", "tests/chain/test_states.py", "tests/chain/test_model_folders.py",
        "tests/stages/test_pooling_report.py")),
)  # fmt: skip
"""More specific packages stand before those that contain them."""


def scope_of(path: Path) -> Scope | None:
    """Return the scope of a module, given by its path in the repository; None for files that are not mutated."""
    if path.suffix != ".py":
        return None
    return next((scope for scope in SCOPES if path.is_relative_to(scope.name)), None)


def modules(root: Path, scope: Scope) -> list[Path]:
    """Return the modules of a scope, relative to ``root``."""
    paths = (path.relative_to(root) for path in sorted((root / scope.name).rglob("*.py")))
    return [path for path in paths if scope_of(path) is scope]
