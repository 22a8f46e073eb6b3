// A CoreDNS with the plugins that a cluster for tests needs, and no others: those of a cloud provider pull in
// its whole client. `cargo xtask kube` builds it.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// The order in which plugins see a request.
func init() {
	dnsserver.Directives = []string{
		"bind", "reload", "health", "ready", "errors", "loop", "cache", "kubernetes", "forward",
	}
}

func main() { coremain.Run() }
