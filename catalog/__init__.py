"""Door: the shipped domain. Scans a source tree and keeps its architecture elements as a governed graph."""
