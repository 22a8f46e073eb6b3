//go:build tools

// Package tools names the program that gives Prometheus' metrics to autoscalers in the end-to-end tests, so that go.mod
// and go.sum hold exactly what it is built from. `cargo xtask kube` builds it.
package tools

import _ "sigs.k8s.io/prometheus-adapter/cmd/adapter"
