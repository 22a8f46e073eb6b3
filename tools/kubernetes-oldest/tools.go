//go:build tools

// Package tools names the programs of the oldest Kubernetes that is supported, so that go.mod and go.sum hold exactly
// what they are built from. `cargo xtask test e2e --kubernetes oldest` builds them.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
