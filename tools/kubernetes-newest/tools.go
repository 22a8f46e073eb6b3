//go:build tools

// Package tools names the programs of the newest Kubernetes that the tests know, so that go.mod and go.sum hold exactly
// what they are built from. `cargo xtask test e2e --kubernetes newest` builds them. Its nodes are of ../kubernetes: newer
// ones need a newer containerd than the machines of the tests have.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
