"""The reconciler of a bucket's queue, as a service: finishes the work that killed writers left incomplete."""
