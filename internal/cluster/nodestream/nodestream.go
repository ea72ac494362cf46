// Package nodestream brings to a node what servers work out for it: the kinds of streams,
// their format, and the client. Package supervisor is the serving side. The boot lists in
// packages agent and server give the parts of a node the stream that Kind.Keep returns.
//
// A stream is a long answer to one request. It has updates as JSON, one in each line. The
// first one is everything, and later ones are what has changed.
package nodestream

import (
	"errors"
	"time"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

const (
	// PoliciesPath, RoutesPath and OrdersPath are where servers with an API server have the
	// streams of a node.
	PoliciesPath = "/v1-kedge/node/policies"
	RoutesPath   = "/v1-kedge/node/routes"
	OrdersPath   = "/v1-kedge/node/orders"
	// KeepAlive is how often a server sends an update at least. One without changes says
	// only that the stream is alive.
	KeepAlive = time.Minute
	// silence is how long a node waits for an update before it connects again.
	silence = 3 * KeepAlive
	// answerPatience is how long a server may take to begin its answer.
	answerPatience = 15 * time.Second
	// maxLine is how many bytes an update may have. A node keeps them in memory while it
	// decodes them. An address has about 15, so that is enough for 1,000 sets with 2,000 pods
	// each. A route and its backend have about 400, and a certificate with its key 5,000.
	maxLine = 32 << 20
	// without is the wait after the answer of a server that has no such stream.
	without = time.Minute
)

// Kind is a kind of streams. U is the type of its updates.
type Kind[U any] struct {
	// Path is where servers serve it.
	Path string
	// Still returns an update without changes that may follow an update. Servers send it so
	// that the stream is alive.
	Still func(last U) U

	// component is the node's part in log messages. It does what verb says with the subject.
	component, verb, subject string
	// missing is the answer of a server that has no such stream. That is no fault if the stream is
	// optional.
	missing  error
	optional bool

	// check refuses what no server sends. begins tells whether an update is everything, and
	// empty whether it changes nothing.
	check         func(*U) error
	begins, empty func(*U) bool
}

// errNoPolicies is the answer of a server of an older version. A node must not take it for
// "no policies", because another server may enforce them.
var errNoPolicies = errors.New("this node gets no NetworkPolicies, because a server runs an older kedge that cannot tell them. " +
	"Upgrade all servers; servers always come before agents. Until then, new pods of this node have no connections")

// errNoRoutes is the answer of a server of an older version, or of one that is configured
// in another way. Other servers may have routes.
var errNoRoutes = errors.New("this node gets no routes of Gateways and Ingresses from a server that runs an older kedge, or has the gateway disabled")

// errNoOrders is the answer of a server of an older version.
var errNoOrders = errors.New("this node gets no orders of Plans from a server that runs an older kedge")

// Policies is the stream of what the pods of a node are held to.
func Policies() Kind[netpolicy.Update] {
	return Kind[netpolicy.Update]{
		Path:      PoliciesPath,
		component: "network-policy", verb: "enforce", subject: "NetworkPolicies",
		missing: errNoPolicies,
		check:   (*netpolicy.Update).Check,
		begins:  func(u *netpolicy.Update) bool { return u.Whole },
		empty:   func(u *netpolicy.Update) bool { return !u.Whole && len(u.Sets)+len(u.Groups)+len(u.Pods) == 0 },
		Still:   func(last netpolicy.Update) netpolicy.Update { return netpolicy.Update{Active: last.Active} },
	}
}

// Routes is the stream of what the gateway of a node serves.
func Routes() Kind[routing.Update] {
	return Kind[routing.Update]{
		Path:      RoutesPath,
		component: "gateway", verb: "serve", subject: "routes of Gateways and Ingresses",
		missing: errNoRoutes, optional: true,
		check:  (*routing.Update).Check,
		begins: func(u *routing.Update) bool { return u.Whole },
		empty:  (*routing.Update).IsEmpty,
		Still:  func(routing.Update) routing.Update { return routing.Update{} },
	}
}

// Orders is the stream of what a node is to run. Each update is whole. A node gets the same
// Order again from time to time, which keeps the stream alive.
func Orders() Kind[upgrades.Order] {
	return Kind[upgrades.Order]{
		Path:      OrdersPath,
		component: "upgrade", verb: "follow", subject: "orders of Plans",
		missing: errNoOrders, optional: true,
		check:  (*upgrades.Order).Check,
		begins: func(*upgrades.Order) bool { return true },
		empty:  func(*upgrades.Order) bool { return false },
		Still:  func(last upgrades.Order) upgrades.Order { return last },
	}
}
