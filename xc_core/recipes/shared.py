"""Settings that several recipes share and no paper names. Where each value comes from: docs/defaults.md."""

from xc_core.classifiers import TableConfig
from xc_core.encoders import EncoderConfig
from xc_core.fusion import Sum
from xc_core.recipes.settings import FusionSettings
from xc_core.train.classifier import ClassifierSettings
from xc_core.train.encoder_settings import EncoderSettings

NO_ENCODER = EncoderSettings(encoder=EncoderConfig(name="bag", max_length=64, width=64), epochs=0.0)
"""No M1: the cheapest encoder, with random weights; no score reads its vectors."""
NO_M4 = ClassifierSettings(epochs=0.0, table=TableConfig(start="text", unit=True))
"""No M4: the rows are those that M1 trained, or the vectors of the label texts if it trained none."""
PLAIN_SUM = FusionSettings(rule=Sum(), rows=10_000, candidates=100)
"""The sum of the scores; with one score, its own ranking. ``rows``: validation documents that figures are of."""
