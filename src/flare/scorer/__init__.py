"""Three lines to a decision: `flare.fit` makes a `Scorer`, which draws samples, scores them and says why.

`inputs` takes networks and data as they come. `choices` holds every default. `judge` compares samples with
real data. `files` saves a scorer, and `estimator` gives it the manners of scikit-learn.
"""
