"""Three lines to a decision: `flare.fit` makes a `Scorer`, which draws samples, scores them and says why.

`inputs` takes networks and data in the forms that users have. `choosing` holds the defaults. `witnesses`
compares samples with real data. `directory` saves a scorer, `sharing` puts it on the Hub, and `estimator`
gives it the interface of scikit-learn.
"""
