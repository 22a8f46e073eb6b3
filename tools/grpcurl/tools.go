//go:build tools

// Package tools names the program that calls the proxy by gRPC without its .proto in a test, so that go.mod and go.sum hold
// exactly what it is built from. `cargo xtask test unit` builds it.
package tools

import _ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
