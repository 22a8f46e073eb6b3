//go:build tools

// Package tools names the program of Helm that the end-to-end tests run, so that go.mod and go.sum hold
// exactly what it is built from. `cargo xtask kube` builds it.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
