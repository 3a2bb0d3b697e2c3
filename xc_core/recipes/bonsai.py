"""A linear model of words, the baseline to beat: Bonsai (Khandagale, Xiao and Babbar, Machine Learning, 2020).

x_i: the unit TF-IDF vector of document i. A label is represented in the paper's input space, by the unit vector of
v_l = sum_i y_il x_i. Each of T trees divides the labels of a node by k-means on them into K clusters of any size, down
to level d or to 100 labels. A node has a linear classifier w per branch or label, learnt from the documents that have a
label of the node, s_i = 1 or -1:
    min_w |w|^2 / 2 + sum_i max(0, 1 - s_i w . x_i)^2
A prediction follows the B best nodes of each level. A label's score is the mean over trees of a product along its path:
    prod_w exp(-max(0, 1 - w . x)^2)

As in the authors' code, each x also has an entry of 1, for a bias, and weights of at most 0.1 are dropped. The bound of
100 labels, and that a cluster has two at least, are omikuji's. The paper also represents labels by other labels (output
and joint space), which is not done here.
Here the text of a label is one more document of it, and the served trees learn from validation documents too; both are
so in ``house``, whose score ``lexical`` this is.

Nothing else is trained. The stages of the pipeline read vectors, so there is an encoder, the cheapest, with random
weights. No score reads its vectors; ``xc drift`` compares new texts with old ones by them. With tokens, all this takes
an eighth of the CPU time on WordNetMini. Where each value comes from: docs/defaults.md.
"""

from dataclasses import replace

from xc_core.recipes.base import Recipe, named, register
from xc_core.recipes.shared import NO_ENCODER, NO_M4, PLAIN_SUM
from xc_core.scores import Lexical
from xc_core.scores.terms import TermSettings

BONSAI = register(
    Recipe(
        name="bonsai",
        paper="Bonsai: diverse and shallow trees for extreme multi-label classification, Khandagale et al., 2020",
        module=__name__,
        encoder=NO_ENCODER,  # no score reads its vectors
        classifier=replace(
            NO_M4,  # no score reads the rows
            refit=True,  # learn from validation documents too, and before that without half of them
            enough=1,  # one half is left out, for figures on validation documents
        ),
        scores=named(
            Lexical(
                terms=TermSettings(ngrams=2, min_documents=2, terms=300_000, characters=0),  # x
                trees=3,  # T
                clusters=100,  # K
                depth=3,  # d
                passes=5,  # of the solver; the authors' code: 20
                tolerance=0.01,  # of k-means; the authors' code: 0.0001
                threshold=0.1,  # Delta
                beam=10,  # B
                labels=100,
            ),
        ),
        fusion=PLAIN_SUM,  # of one score: the trees alone rank
    ),
)
