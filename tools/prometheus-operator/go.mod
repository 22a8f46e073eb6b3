// The Prometheus operator's definitions, for tests: they lie in its module's example/prometheus-operator-crd.
module percolator.dev/tools/prometheus-operator

go 1.26

require github.com/prometheus-operator/prometheus-operator v0.85.0
