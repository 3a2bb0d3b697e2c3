"""NGAME: Negative Mining-aware Mini-batching for Extreme Classification (Dahiya et al., WSDM 2023).

Takes: nothing.            Gives: the recipe ``ngame``.
May import: recipes.base.  Never: code; a method is data.

Order: near documents together, clustered on stale vectors every tau epochs, clusters growing (algorithm 1, section 3).
Negatives: the positives of the batch's other documents; M1 samples one positive a document, M4 takes all (appendix C).
Scorer: M1 the label's text; M4 a table row that starts at its text's vector, the encoder frozen (M3).
Loss: triplet, margin 0.3 in M1 and 0.2 in M4.   Fusion: a tree of depth 7 on validation rows, plus both scores.
"""

from xc_core.recipes.base import RECIPES, Recipe

NGAME = RECIPES.add("ngame", Recipe(name="ngame", paper="NGAME, Dahiya et al., WSDM 2023", module=__name__))
